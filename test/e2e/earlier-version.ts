/** An earlier version of the agent, from the history of this repository. */
import { mkdtempSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { execa, execaSync } from 'execa';
import { PORTWIDE } from '../portwide.ts';

const ROOT = new URL('../..', import.meta.url).pathname;
/** The version to start from until a release has a tag: the oldest that still passes the test. */
const OLDEST = 'bd5c383f';

function git(...args: string[]): string | undefined {
  const { exitCode, stdout } = execaSync('git', args, { cwd: ROOT, reject: false });
  return exitCode === 0 ? stdout : undefined;
}

const commitOf = (ref: string) => git('rev-parse', '--verify', '--quiet', `${ref}^{commit}`);

/** The ref, or undefined without the history. */
export function knownRef(ref: string): string | undefined {
  return commitOf(ref) === undefined ? undefined : ref;
}

/**
 * The ref of the version before this one: PORTWIDE_UPGRADE_FROM, otherwise the last tag before this
 * commit, otherwise the oldest commit that can take part. Undefined in a source archive or a shallow
 * clone, which have no history. Nothing is wrong with the code then, and a restart of this version is
 * still worth the test. The workflow `ci` fetches the whole history.
 */
export function earlierRef(): string | undefined {
  const named = process.env.PORTWIDE_UPGRADE_FROM;
  if (named !== undefined) return named;
  const merged = ['--merged', 'HEAD', '--no-contains', 'HEAD'];
  const tags = git('tag', '--list', 'v[0-9]*', ...merged, '--sort=-version:refname');
  const last = tags?.split('\n').find((tag) => tag !== '');
  return last ?? knownRef(OLDEST);
}

export interface EarlierVersion {
  /** Path of its launcher. */
  readonly program: string;
  readonly hasStatusApi: boolean;
  remove(): void;
}

/**
 * Unpacks a version. It runs from its sources, with the packages of this checkout: a test must not
 * need the network.
 *
 * @param ref undefined for this version
 * @throws Error if the ref names no commit
 */
export async function unpackVersion(ref: string | undefined): Promise<EarlierVersion> {
  if (ref === undefined) return { program: PORTWIDE, hasStatusApi: true, remove: () => {} };
  if (commitOf(ref) === undefined) {
    throw new Error(
      `no such commit: ${ref} (PORTWIDE_UPGRADE_FROM); try git fetch --unshallow --tags`,
    );
  }
  const directory = mkdtempSync(join(tmpdir(), 'portwide-earlier-'));
  const archive = join(directory, 'archive.tar');
  await execa('git', ['archive', '--output', archive, ref], { cwd: ROOT });
  await execa('tar', ['-xf', archive, '-C', directory]);
  symlinkSync(join(ROOT, 'node_modules'), join(directory, 'node_modules'));
  const program = join(directory, 'portwide');
  const { stdout } = await execa(program, ['run', '--help']);
  return {
    program,
    hasStatusApi: stdout.includes('--status-socket'),
    remove: () => rmSync(directory, { recursive: true, force: true }),
  };
}
