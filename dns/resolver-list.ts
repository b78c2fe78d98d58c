/** The resolvers that `--forward` names, by itself and by files such as resolv.conf, which are followed. */
import { readFile } from 'node:fs/promises';
import { asError } from '../api/errors.ts';
import type { Resolver } from './exchange.ts';
import { formatResolver, readResolvConf } from './resolver-address.ts';

/** One part of `--forward`. */
export type ForwardTarget =
  | { readonly resolver: Resolver }
  /** Path of a resolv.conf. */
  | { readonly file: string };

interface ResolverListOptions {
  readonly targets: readonly ForwardTarget[];
  /** Hears of the resolvers when they are others than before; not of the first ones. */
  readonly onChange: (resolvers: readonly Resolver[]) => void;
  /** A file cannot be read any more, or names no resolver; what it named last counts. Told once until it can be. */
  readonly onFailure: (file: string, error: Error) => void;
  /** @throws (a rejection) what the system says. */
  readonly read?: (file: string) => Promise<string>;
}

/** Milliseconds between two looks at files. Any editor, symbolic link and ConfigMap can change them; they are short. */
export const RELOAD_PERIOD = 5000;

/** A file that is to name resolvers names none. */
class NoResolvers extends Error {
  override readonly name = 'NoResolvers';

  constructor(file: string) {
    super(`${file} names no nameserver`);
  }
}

/** Keeps the list of resolvers in step with files. */
export class ResolverList {
  readonly #options: Required<ResolverListOptions>;
  /** What each file named last. */
  readonly #resolversByFile = new Map<string, readonly Resolver[]>();
  readonly #failing = new Set<string>();
  #lastReported = '';

  constructor(options: ResolverListOptions) {
    this.#options = { read: (file) => readFile(file, 'utf8'), ...options };
  }

  /** @throws (a rejection) when a file cannot be read, or names no resolver. */
  async start(): Promise<readonly Resolver[]> {
    for (const file of this.#files()) this.#resolversByFile.set(file, await this.#read(file));
    const resolvers = this.#resolvers();
    this.#lastReported = textOf(resolvers);
    return resolvers;
  }

  /** Reads all files again. Never rejects. */
  async reload(): Promise<void> {
    const { onChange, onFailure } = this.#options;
    for (const file of this.#files()) {
      try {
        this.#resolversByFile.set(file, await this.#read(file));
        this.#failing.delete(file);
      } catch (error) {
        if (!this.#failing.has(file)) onFailure(file, asError(error));
        this.#failing.add(file);
      }
    }
    const resolvers = this.#resolvers();
    const text = textOf(resolvers);
    if (text === this.#lastReported) return;
    this.#lastReported = text;
    onChange(resolvers);
  }

  #files(): string[] {
    return this.#options.targets.flatMap((target) => ('file' in target ? target.file : []));
  }

  async #read(file: string): Promise<readonly Resolver[]> {
    const resolvers = readResolvConf(await this.#options.read(file));
    if (resolvers.length === 0) throw new NoResolvers(file);
    return resolvers;
  }

  /** In the order of the targets, each once. */
  #resolvers(): readonly Resolver[] {
    const all = this.#options.targets.flatMap((target) =>
      'file' in target ? (this.#resolversByFile.get(target.file) ?? []) : target.resolver,
    );
    return [...new Map(all.map((each) => [formatResolver(each), each])).values()];
  }
}

function textOf(resolvers: readonly Resolver[]): string {
  return resolvers.map(formatResolver).join();
}
