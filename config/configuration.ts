/** Loads the configuration from flags and the file of `--config`. */
import { constants } from 'node:fs';
import { open } from 'node:fs/promises';
import { asError } from '../api/errors.ts';
import { type Configuration, configure } from './configure.ts';
import { ConfigurationError, formatNotice } from './errors.ts';
import type { FlagTexts } from './flags.ts';
import type { ConfigFile } from './notices.ts';

/** The size limit of a ConfigMap. */
const MAX_BYTES = 1024 * 1024;

export interface LoadedConfiguration extends Configuration {
  /** Undefined without `--config`. */
  readonly file: ConfigFile | undefined;
}

/** Loads the options from flags and the configuration file. @throws ConfigurationError */
export async function loadConfiguration(texts: FlagTexts): Promise<LoadedConfiguration> {
  const path = texts.config;
  if (path === undefined || path === '') return { ...configure(texts), file: undefined };
  const file = { path, content: await contentOf(path) };
  return { ...configure(texts, file), file };
}

/** Loads the options and writes warnings to standard error, for commands without a log. @throws ConfigurationError */
export async function loadOrWarn(texts: FlagTexts): Promise<LoadedConfiguration> {
  const loaded = await loadConfiguration(texts);
  for (const warning of loaded.warnings)
    process.stderr.write(`warning: ${formatNotice(warning)}\n`);
  return loaded;
}

async function contentOf(path: string): Promise<string> {
  try {
    return await readConfig(path);
  } catch (error) {
    const problem = { subject: path, message: `cannot be read: ${asError(error).message}` };
    throw new ConfigurationError([problem], { cause: error });
  }
}

/** @throws Error if the file is not a regular file, is too large, is not UTF-8, or cannot be read. */
export async function readConfig(path: string): Promise<string> {
  // Without O_NONBLOCK, opening a pipe would block until it has a writer.
  const handle = await open(path, constants.O_RDONLY | constants.O_NONBLOCK);
  try {
    const stats = await handle.stat();
    if (!stats.isFile()) throw new Error('not a regular file');
    if (stats.size > MAX_BYTES) throw new Error(`larger than ${MAX_BYTES} bytes`);
    return new TextDecoder('utf-8', { fatal: true }).decode(await handle.readFile());
  } finally {
    await handle.close();
  }
}
