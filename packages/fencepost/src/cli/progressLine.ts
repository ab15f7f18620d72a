/** A line without a terminal, no more often than this, in milliseconds. */
const LINE_EVERY_MS = 10_000;

/** Shows progress: on a terminal one line that changes, elsewhere a line now and then. */
export function progressLine(
  out: Pick<NodeJS.WriteStream, "write"> & { readonly isTTY?: boolean },
  now: () => number = () => performance.now(),
): { show(line: string): void; end(): void } {
  let shownAt = Number.NEGATIVE_INFINITY;
  let isOpen = false;
  return {
    show(line) {
      if (out.isTTY) {
        out.write(`\r\u001b[K${line}`);
        isOpen = true;
      } else if (now() - shownAt >= LINE_EVERY_MS) {
        out.write(`${line}\n`);
        shownAt = now();
      }
    },
    end() {
      if (isOpen) out.write("\n");
    },
  };
}
