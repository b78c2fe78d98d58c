/** A directory of manifests as a source of objects: watched, and read again when it changes. */
import { type BigIntStats, type FSWatcher, statSync, watch } from 'node:fs';
import { join } from 'node:path';
import { setImmediate as yieldToEventLoop } from 'node:timers/promises';
import { isDeepStrictEqual } from 'node:util';
import { asError } from '../../api/errors.ts';
import type { Kind } from '../../api/objects.ts';
import type { ObjectSink, Source } from '../source.ts';
import {
  duplicateProblem,
  listManifests,
  ManifestDirectoryError,
  type ManifestFile,
  readManifest,
} from './directory.ts';
import { FilePrecedence } from './file-precedence.ts';
import type { ParsedObject } from './parse.ts';
import type { ManifestProblem } from './problem.ts';

export interface ManifestSourceOptions {
  readonly directory: string;
  /** Objects of other kinds are passed over. */
  readonly kinds: readonly Kind[];
  readonly sink: ObjectSink;
  /** Called once for each problem as it appears, and again when it comes back. */
  readonly onProblem: (problem: ManifestProblem) => void;
  /**
   * Called when a file, or the directory, that had a problem has none any more.
   * @param isGone it was deleted.
   */
  readonly onRecovered?: (file: string, isGone: boolean) => void;
  /** Told how many files have a problem, the directory counted as one; first when it was read, then at changes. */
  readonly onFaulty?: (count: number) => void;
  /** Milliseconds between looks at the directory without any event. */
  readonly rescanMs?: number;
}

/** What is known of one file; its objects are those that it contributes now. */
interface FileState extends Pick<ManifestFile, 'objects' | 'problems' | 'warnings'> {
  /** undefined: to be read again at the next look. */
  readonly signature: string | undefined;
  /** Whether it ever held something and was without problems. */
  readonly wasGood: boolean;
}

/** Milliseconds of quiet to wait for after a file event. */
const DEBOUNCE_MS = 30;
/** Under unceasing events, changes are still taken this many settle times after the first. */
const MAX_DEBOUNCES = 8;
/** Two writes this close may leave the same times on a file: the kernel's clock ticks coarsely. */
const RACY_MS = 20;

/**
 * A directory of manifests as a source, watched.
 *
 * A file with any problem is reported and keeps its last good objects in force, all of them: half
 * of a manifest is not what anyone wanted. A file that was never good has no such state; of it,
 * whatever could be read so far counts, since the rest of a node's Services must not wait for one
 * bad field at start. A file that turns blank keeps its objects too, because that is what the
 * shell's `>` and editors make of it for a moment; to remove objects, delete them or the file.
 *
 * On `fs.watch` and not chokidar, because chokidar 5 was seen to miss a file renamed over another
 * with the same mtime, and the `..data` swap of a ConfigMap mount while the old target stays, and
 * to take up to a second for new files. Events only say when to look; a look compares inode, size
 * and times of every file. The periodic look finds what makes no event: files behind symbolic
 * links to elsewhere, network file systems, and a directory that comes back.
 * @throws ManifestDirectoryError from `start` when the directory cannot be read.
 */
export class ManifestSource implements Source {
  readonly #options: ManifestSourceOptions & { rescanMs: number };
  readonly #precedence = new FilePrecedence();
  readonly #files = new Map<string, FileState>();
  #watcher: FSWatcher | undefined;
  /** Identity of the watched directory. */
  #watched: string | undefined;
  #directoryProblem: string | undefined;
  #faulty: number | undefined;
  #debounceTimer: NodeJS.Timeout | undefined;
  #firstEvent: number | undefined;
  #rescanTimer: NodeJS.Timeout | undefined;
  #scanning: Promise<void> | undefined;
  #scanAgain = false;
  #stopped = false;

  constructor(options: ManifestSourceOptions) {
    this.#options = { rescanMs: 5000, ...options };
  }

  async start(): Promise<void> {
    listManifests(this.#options.directory); // for its error
    await this.#scan();
    if (this.#stopped) return;
    for (const kind of this.#options.kinds) this.#options.sink.synced(kind);
    this.#rescanTimer = setInterval(() => void this.#scan(), this.#options.rescanMs);
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    clearTimeout(this.#debounceTimer);
    clearInterval(this.#rescanTimer);
    this.#watcher?.close();
    await this.#scanning;
  }

  unreadable(): ReadonlyMap<string, number> {
    const objects = new Set<string>();
    for (const { problems } of this.#files.values()) {
      for (const { object, field } of problems) {
        // Without a field: it can be read, and another comes first.
        if (object !== undefined && field !== undefined) objects.add(object);
      }
    }
    const counts = new Map<string, number>();
    for (const object of objects) {
      const [kind = ''] = object.split(' ');
      counts.set(kind, (counts.get(kind) ?? 0) + 1);
    }
    return counts;
  }

  #onEvent(): void {
    if (this.#stopped) return;
    const now = performance.now();
    this.#firstEvent ??= now;
    const latest = this.#firstEvent + MAX_DEBOUNCES * DEBOUNCE_MS;
    clearTimeout(this.#debounceTimer);
    this.#debounceTimer = setTimeout(
      () => {
        this.#firstEvent = undefined;
        void this.#scan();
      },
      Math.max(0, Math.min(DEBOUNCE_MS, latest - now)),
    );
  }

  /**
   * Looks at the directory now, or once more after the look that is under way. Rejects only with
   * what the sink or `onProblem` throw; nobody catches that, for it is a bug and must be loud.
   */
  #scan(): Promise<void> {
    this.#scanAgain = true;
    this.#scanning ??= this.#scanUntilCaughtUp().finally(() => {
      this.#scanning = undefined;
    });
    return this.#scanning;
  }

  async #scanUntilCaughtUp(): Promise<void> {
    while (this.#scanAgain && !this.#stopped) {
      this.#scanAgain = false;
      try {
        this.#watch();
        await this.#readChanged();
        if (this.#directoryProblem !== undefined)
          this.#options.onRecovered?.(this.#options.directory, false);
        this.#directoryProblem = undefined;
      } catch (error) {
        if (!(error instanceof ManifestDirectoryError)) throw error;
        this.#watcher?.close();
        this.#watched = undefined;
        this.#reportDirectory(`${error.reason}; its last objects stay in force until it can be`);
      }
      if (this.#stopped) return;
      this.#deliver();
      this.#countFaulty();
    }
  }

  /** Watches the directory, or the one that has come in its place. */
  #watch(): void {
    const { directory } = this.#options;
    let identity: string;
    try {
      const { dev, ino, birthtimeNs } = statSync(directory, { bigint: true });
      identity = `${dev}:${ino}:${birthtimeNs}`; // inode numbers are used again
    } catch (error) {
      throw new ManifestDirectoryError(directory, error);
    }
    if (identity === this.#watched) return;
    this.#watcher?.close();
    this.#watched = identity;
    try {
      this.#watcher = watch(directory, () => this.#onEvent());
      this.#watcher.on('error', (error) => this.#reportWatch(error));
    } catch (error) {
      this.#reportWatch(error);
    }
  }

  async #readChanged(): Promise<void> {
    const { directory, kinds } = this.#options;
    const present = new Set(listManifests(directory));
    for (const [file, before] of this.#files) {
      if (present.has(file)) continue;
      this.#files.delete(file);
      this.#precedence.setFile(file, []);
      if (before.problems.length > 0) this.#options.onRecovered?.(join(directory, file), true);
    }
    for (const file of present) {
      const signature = signatureOf(join(directory, file));
      const before = this.#files.get(file);
      if (signature !== undefined && signature === before?.signature) continue;
      this.#updateFile(file, signature, before, readManifest(directory, file, kinds));
      await yieldToEventLoop(); // parsing is slow; let others run between files
      if (this.#stopped) return;
    }
  }

  #updateFile(
    file: string,
    signature: string | undefined,
    before: FileState | undefined,
    read: ManifestFile,
  ): void {
    const { directory, onProblem, onRecovered } = this.#options;
    const path = join(directory, file);
    const problems =
      read.blank && before !== undefined && before.objects.length > 0
        ? [{ reason: 'is empty; its last objects stay in force until it is deleted' }]
        : read.problems;
    const good = problems.length === 0;
    const last = before?.objects ?? [];
    const kept = before?.wasGood ? last : merge(read.objects, last);
    const objects = good ? read.objects : kept;
    const wasGood = (good && !read.blank) || (before?.wasGood ?? false);
    const { warnings } = read;
    this.#files.set(file, { signature, wasGood, objects, problems, warnings });
    this.#precedence.setFile(file, objects);
    if (good && before !== undefined && before.problems.length > 0) {
      onRecovered?.(path, false);
    }
    for (const [now, then] of [
      [problems, before?.problems],
      [warnings, before?.warnings],
    ] as const) {
      if (isDeepStrictEqual(now, then)) continue;
      for (const problem of now) onProblem({ file: path, ...problem });
    }
  }

  #deliver(): void {
    const { directory, sink, onProblem } = this.#options;
    const { removed, changed, duplicates } = this.#precedence.apply();
    for (const { kind, key } of removed) sink.remove(kind, key);
    for (const object of changed) sink.upsert(object);
    for (const duplicate of duplicates) onProblem(duplicateProblem(directory, duplicate));
  }

  #countFaulty(): void {
    const faulty = [...this.#files.values()].filter(({ problems }) => problems.length > 0).length;
    const count = faulty + (this.#directoryProblem === undefined ? 0 : 1);
    if (count === this.#faulty) return;
    this.#faulty = count;
    this.#options.onFaulty?.(count);
  }

  #reportDirectory(reason: string): void {
    if (this.#directoryProblem === reason) return;
    this.#directoryProblem = reason;
    this.#options.onProblem({ file: this.#options.directory, reason });
  }

  /** Such as ENOSPC, when the user's inotify watches are used up. */
  #reportWatch(error: unknown): void {
    const { directory, rescanMs, onProblem } = this.#options;
    const message = asError(error).message;
    const reason = `cannot be watched, and is looked at every ${rescanMs} ms instead: ${message}`;
    onProblem({ file: directory, reason });
  }
}

/** The new objects, then those that they do not replace. */
function merge(
  objects: readonly ParsedObject[],
  last: readonly ParsedObject[],
): readonly ParsedObject[] {
  const names = new Set(objects.map(({ object }) => `${object.kind} ${object.key}`));
  return [...objects, ...last.filter(({ object }) => !names.has(`${object.kind} ${object.key}`))];
}

/** What changes whenever a file does; undefined when that cannot be told. */
function signatureOf(path: string): string | undefined {
  let stats: BigIntStats;
  try {
    stats = statSync(path, { bigint: true });
  } catch {
    return undefined; // reading it will say why
  }
  if (Math.abs(Date.now() - Number(stats.ctimeMs)) < RACY_MS) return undefined;
  const { dev, ino, size, mtimeNs, ctimeNs } = stats;
  return [dev, ino, size, mtimeNs, ctimeNs].join(':');
}
