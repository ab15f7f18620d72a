import { type FSWatcher, watch } from "node:fs";
import { readdir } from "node:fs/promises";
import { dirname, join } from "node:path";

/** Editors write a file in several steps: a change is told this long after the last of them, in milliseconds. */
const SETTLE_MS = 100;
/** Folders that are watched, at the most. */
const MAX_FOLDERS = 500;
const SOURCE_FILE = /\.(?:[cm]?[jt]sx?|json)$/;

export interface SourceWatch {
  /** Watches the folders of these files too: modules that are shared with the project from outside. */
  alsoFolderOf(files: readonly string[]): void;
  /** Resolves once a source file was saved since the last call, or `signal` is aborted. */
  changed(signal: AbortSignal): Promise<void>;
  close(): void;
}

/**
 * Watches the source files under a folder, without `node_modules` and hidden folders. Folders that are made later
 * are watched too. What cannot be watched is told to `onError`.
 */
export async function watchSources(root: string, onError: (error: Error) => void): Promise<SourceWatch> {
  const watchers = new Map<string, FSWatcher>();
  let closed = false;
  let saved = false;
  let dirty = false;
  let wake = (): void => {};
  let settling: NodeJS.Timeout | undefined;

  /** Watches what is not watched yet. True where there was such a folder. */
  function watchFolders(folders: readonly string[]): boolean {
    const fresh = folders.filter((folder) => !watchers.has(folder));
    for (const folder of closed ? [] : fresh) {
      try {
        const watcher = watch(folder, (_, name) => onEvent(name));
        watcher.on("error", onError);
        watchers.set(folder, watcher);
      } catch (error) {
        onError(error as Error);
      }
    }
    return fresh.length > 0;
  }

  function onEvent(name: string | null): void {
    saved ||= name === null || SOURCE_FILE.test(name);
    clearTimeout(settling);
    settling = setTimeout(() => void settle(), SETTLE_MS);
  }

  async function settle(): Promise<void> {
    // A folder that is new may have come with files in it, before it was watched.
    const grown = watchFolders(await foldersUnder(root));
    if (!saved && !grown) return;
    saved = false;
    dirty = true;
    wake();
  }

  watchFolders(await foldersUnder(root));
  return {
    alsoFolderOf(files) {
      watchFolders([...new Set(files.map((file) => dirname(file)))]);
    },
    async changed(signal) {
      if (!dirty && !signal.aborted) {
        await new Promise<void>((resolve) => {
          wake = resolve;
          signal.addEventListener("abort", () => resolve(), { once: true });
        });
      }
      dirty = false;
    },
    close() {
      closed = true;
      clearTimeout(settling);
      for (const watcher of watchers.values()) watcher.close();
    },
  };
}

async function foldersUnder(root: string): Promise<readonly string[]> {
  const found = [root];
  for (const folder of found) {
    const entries = await readdir(folder, { withFileTypes: true }).catch(() => []);
    for (const entry of entries) {
      if (found.length >= MAX_FOLDERS) return found;
      if (!entry.isDirectory() || entry.name.startsWith(".") || entry.name === "node_modules") continue;
      found.push(join(folder, entry.name));
    }
  }
  return found;
}
