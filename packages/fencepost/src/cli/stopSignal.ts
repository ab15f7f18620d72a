/** npm passes Ctrl-C on although the terminal does too: what comes this soon is the same signal, in milliseconds. */
const SAME_SIGNAL_MS = 1_000;

/** Aborted by the first SIGINT or SIGTERM. A later one ends the process at once. */
export function listenForStop(): AbortSignal {
  const stopping = new AbortController();
  let first = 0;
  const onSignal = (signal: NodeJS.Signals): void => {
    if (!stopping.signal.aborted) {
      first = performance.now();
      stopping.abort();
    } else if (performance.now() - first > SAME_SIGNAL_MS) {
      process.exit(signal === "SIGINT" ? 130 : 143);
    }
  };
  process.on("SIGINT", onSignal);
  process.on("SIGTERM", onSignal);
  return stopping.signal;
}

/** Waits until `signal` is aborted. */
export function untilAborted(signal: AbortSignal): Promise<void> {
  if (signal.aborted) return Promise.resolve();
  return new Promise((resolve) => signal.addEventListener("abort", () => resolve(), { once: true }));
}
