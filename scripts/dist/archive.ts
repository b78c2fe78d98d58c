/** Archives whose bytes depend only on the content of their files, and digests. */
import { createHash } from 'node:crypto';
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { execa } from 'execa';

/**
 * Time of files in the artefacts, seconds since 1970: SOURCE_DATE_EPOCH, otherwise the time of the
 * last commit. See https://reproducible-builds.org/specs/source-date-epoch/.
 */
export async function sourceDate(directory: string): Promise<number> {
  const given = process.env.SOURCE_DATE_EPOCH;
  const text =
    given ?? (await execa('git', ['log', '-1', '--format=%ct'], { cwd: directory })).stdout;
  if (!/^\d+$/.test(text)) throw new Error(`SOURCE_DATE_EPOCH must be a number, not ${text}`);
  return Number(text);
}

/**
 * Writes a tar.gz file with the named files and directories of `directory`.
 *
 * @param flags more flags of GNU tar
 */
export async function writeTarball(
  file: string,
  directory: string,
  names: readonly string[],
  date: number,
  flags: readonly string[] = [],
): Promise<void> {
  // tar 1.35 writes other bytes in format ustar than tar 1.34.
  const fixed = ['--sort=name', '--format=gnu', '--owner=0', '--group=0', '--numeric-owner'];
  const rest = [
    '--mode=u=rwX,go=rX',
    `--mtime=@${date}`,
    ...flags,
    '-C',
    directory,
    '--',
    ...names,
  ];
  // -n: without name and time of the input.
  await execa('tar', ['-cf', file, '-I', 'gzip -n', ...fixed, ...rest]);
}

/**
 * Compresses with gzip instead of Node's zlib, whose output depends on the CPU's instructions.
 *
 * @param level in images, 9 instead of 6 would save half a percent and take twice the time
 */
export async function gzip(input: Buffer | string, level = 6): Promise<Buffer> {
  const flags = [`-${level}`, '--no-name'];
  const { stdout } = await execa('gzip', flags, { input, encoding: 'buffer' });
  return Buffer.from(stdout);
}

/** The digest in hexadecimal digits. */
export function sha256(data: Buffer | string): string {
  return createHash('sha256').update(data).digest('hex');
}

/** Writes SHA256SUMS, for `sha256sum -c`. */
export function writeDigests(directory: string): void {
  const lines = readdirSync(directory)
    .sort()
    .map((name) => `${sha256(readFileSync(join(directory, name)))}  ${name}\n`);
  writeFileSync(join(directory, 'SHA256SUMS'), lines.join(''));
}
