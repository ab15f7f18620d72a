/** The keys that secrets of webhooks are sealed with: base64 of 32 bytes each, with commas between, the newest first. */
export function secretsKey(): string | undefined {
  return process.env["FENCEPOST_SECRETS_KEY"] || undefined;
}
