/** The error that `action` throws or rejects with; fails where it does neither. */
export async function thrown(action: () => unknown): Promise<unknown> {
  try {
    await action();
  } catch (error) {
    return error;
  }
  throw new Error("An error was expected, and there was none.");
}
