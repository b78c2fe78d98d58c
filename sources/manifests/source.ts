/** Reads objects from a manifest directory, and reads changed files again. */
import { type BigIntStats, type FSWatcher, statSync, watch } from 'node:fs';
import { join } from 'node:path';
import { setImmediate as yieldToEventLoop } from 'node:timers/promises';
import { isDeepStrictEqual } from 'node:util';
import { asError } from '../../api/errors.ts';
import type { Kind } from '../../api/objects.ts';
import type { ObjectSink, Source, SourceFault } from '../source.ts';
import {
  duplicateProblem,
  listManifests,
  ManifestDirectoryError,
  type ManifestFile,
  readManifest,
} from './directory.ts';
import { FilePrecedence } from './file-precedence.ts';
import type { ParsedObject } from './parse.ts';
import { formatProblem, type ManifestProblem, type Problem } from './problem.ts';

export interface ManifestSourceOptions {
  readonly directory: string;
  /** Objects of other kinds are skipped. */
  readonly kinds: readonly Kind[];
  readonly sink: ObjectSink;
  /**
   * Called for each problem and warning. When the problems of a file change, called again for all
   * problems of the file.
   */
  readonly onProblem: (problem: ManifestProblem) => void;
  /**
   * Called when a file or the directory no longer has problems.
   * @param isGone the file was deleted.
   */
  readonly onRecovered?: (file: string, isGone: boolean) => void;
  /**
   * Called with the number of files that have problems, after the first read and then on changes.
   * An unreadable directory counts as one file.
   */
  readonly onFaulty?: (count: number) => void;
  /** Milliseconds between periodic rescans. */
  readonly rescanMs?: number;
}

/** State of one file. `objects` are the objects of the file that are in force. */
interface FileState extends Pick<ManifestFile, 'objects' | 'problems' | 'warnings'> {
  /** undefined: read the file again at the next scan. */
  readonly signature: string | undefined;
  /** Whether the file was ever non-blank and without problems. */
  readonly wasGood: boolean;
  /** Whether the file became blank; its problem says that its objects stay in force. */
  readonly isBlank: boolean;
}

/** Milliseconds without a file event before a scan (debounce). */
const DEBOUNCE_MS = 30;
/** During continuous events a scan starts after this many debounce periods. */
const MAX_DEBOUNCES = 8;
/**
 * Two writes within this time may leave the same timestamps on a file, because the kernel's clock
 * is coarse.
 */
const RACY_MS = 20;

/**
 * Delivers the objects of a manifest directory and watches the directory.
 *
 * A file with problems is reported, and all of its last good objects stay in force: half a manifest
 * is never intended. A file that was never good has no last good objects, so its readable objects
 * are used. One bad field at start must not hold back the other Services of a node. A file that
 * becomes blank also keeps its objects, because the shell's `>` and editors leave it blank for a
 * moment. To remove all objects of a file, delete the file.
 *
 * Uses `fs.watch` instead of chokidar. chokidar 5 missed a file renamed over another with the same
 * mtime, and the `..data` swap of a ConfigMap mount while the old target exists. chokidar also took
 * up to a second to report new files. An event only triggers a scan; the scan compares inode, size
 * and times of every file. A periodic rescan finds changes without events: targets of symbolic
 * links, network file systems, and a recreated directory.
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
  #faultyCount: number | undefined;
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
    listManifests(this.#options.directory); // throws if the directory cannot be read
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

  *faults(): Iterable<SourceFault> {
    const { directory } = this.#options;
    if (this.#directoryProblem !== undefined) {
      const message = `${directory}: ${this.#directoryProblem}`;
      yield { object: undefined, message, inForce: undefined };
    }
    for (const [file, state] of this.#files) {
      for (const problem of state.problems) {
        const { object } = problem;
        const place = { file: join(directory, file), ...problem, object: undefined };
        yield { object, message: formatProblem(place), inForce: inForce(state, problem) };
      }
    }
  }

  unreadable(): ReadonlyMap<string, number> {
    const objects = new Set<string>();
    for (const { problems } of this.#files.values()) {
      for (const { object, field } of problems) {
        // A problem without a field is a duplicate: the object itself can be read.
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
   * Scans the directory now, or once more after the current scan. Rejects only with errors of the
   * sink or a callback. Such errors are bugs, so no caller catches them.
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
        this.#reportDirectory(`${error.reason}; the objects read last stay in force`);
      }
      if (this.#stopped) return;
      this.#deliver();
      this.#countFaulty();
    }
  }

  /** Watches the directory. Watches the new directory after the directory was recreated. */
  #watch(): void {
    const { directory } = this.#options;
    let identity: string;
    try {
      const { dev, ino, birthtimeNs } = statSync(directory, { bigint: true });
      identity = `${dev}:${ino}:${birthtimeNs}`; // inode numbers are reused
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
      await yieldToEventLoop(); // parsing is slow; yield to the event loop between files
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
    const isBlank = read.blank && before !== undefined && before.objects.length > 0;
    const problems = isBlank
      ? [{ reason: 'is empty; its objects stay in force: to remove them, delete the file' }]
      : read.problems;
    const isGood = problems.length === 0;
    const last = before?.objects ?? [];
    const retained = before?.wasGood ? last : merge(read.objects, last);
    const objects = isGood ? read.objects : retained;
    const wasGood = (isGood && !read.blank) || (before?.wasGood ?? false);
    const { warnings } = read;
    this.#files.set(file, { signature, wasGood, isBlank, objects, problems, warnings });
    this.#precedence.setFile(file, objects);
    if (isGood && before !== undefined && before.problems.length > 0) {
      onRecovered?.(path, false);
    }
    for (const [current, previous] of [
      [problems, before?.problems],
      [warnings, before?.warnings],
    ] as const) {
      if (isDeepStrictEqual(current, previous)) continue;
      for (const problem of current) onProblem({ file: path, ...problem });
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
    if (count === this.#faultyCount) return;
    this.#faultyCount = count;
    this.#options.onFaulty?.(count);
  }

  #reportDirectory(reason: string): void {
    if (this.#directoryProblem === reason) return;
    this.#directoryProblem = reason;
    this.#options.onProblem({ file: this.#options.directory, reason });
  }

  /** Reports a failed watch, for example ENOSPC when the user's inotify watches are used up. */
  #reportWatch(error: unknown): void {
    const { directory, rescanMs, onProblem } = this.#options;
    const message = asError(error).message;
    const reason = `cannot be watched; rescanning every ${rescanMs} ms instead: ${message}`;
    onProblem({ file: directory, reason });
  }
}

/** What is in force of a file, or of its object, with this problem. */
function inForce(
  { objects, wasGood, isBlank }: FileState,
  { object: name, field }: Problem,
): SourceFault['inForce'] {
  if (isBlank) return undefined;
  if (wasGood) return 'last';
  if (name === undefined) return objects.length > 0 ? 'parts' : 'none';
  if (!objects.some(({ object }) => `${object.kind} ${object.key}` === name)) return 'none';
  // A problem without a field is a duplicate.
  return field === undefined ? 'parts' : 'last';
}

/** The objects of the file, then previous objects whose name is not among them. */
function merge(
  objects: readonly ParsedObject[],
  last: readonly ParsedObject[],
): readonly ParsedObject[] {
  const names = new Set(objects.map(({ object }) => `${object.kind} ${object.key}`));
  return [...objects, ...last.filter(({ object }) => !names.has(`${object.kind} ${object.key}`))];
}

/**
 * A signature that changes whenever the file changes; undefined when a change could leave the
 * signature unchanged.
 */
function signatureOf(path: string): string | undefined {
  let stats: BigIntStats;
  try {
    stats = statSync(path, { bigint: true });
  } catch {
    return undefined; // reading the file reports the reason
  }
  if (Math.abs(Date.now() - Number(stats.ctimeMs)) < RACY_MS) return undefined;
  const { dev, ino, size, mtimeNs, ctimeNs } = stats;
  return [dev, ino, size, mtimeNs, ctimeNs].join(':');
}
