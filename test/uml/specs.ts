/** The specs that run inside: finding them, and what mocha has to be told to run them. */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { BUNDLE, BUNDLE_VARIABLE } from '../portwide.ts';
import { parseResults, type SpecPath } from './results.ts';

const MOCHA = new URL('../../node_modules/mocha/bin/mocha.js', import.meta.url).pathname;
const REPORTER = new URL('./inner-reporter.ts', import.meta.url).pathname;
const SPECS = new URL('./specs/**/*.uml.ts', import.meta.url).pathname;
/** For one spec on a quiet machine: what takes a second outside may take ten inside. */
const TIMEOUT_MS = 240_000;

/**
 * mocha's configuration for all specs, or for some.
 * @param slowness how many times longer than on a quiet machine a spec may take
 */
export function mochaConfig(only?: readonly SpecPath[], specs = SPECS, slowness = 2): string {
  const titles = only?.map((path) => path.join(' ').replaceAll(/[$()*+.?[\\\]^{|}]/g, '\\$&'));
  return JSON.stringify({
    spec: [specs],
    reporter: REPORTER,
    timeout: Math.round(TIMEOUT_MS * slowness),
    forbidOnly: true,
    forbidPending: true,
    ...(titles && { grep: `^(?:${titles.join('|')})$` }),
  });
}

/** The command that runs mocha by the configuration in a file. */
export function mochaCommand(config: string): string[] {
  return [MOCHA, '--config', config];
}

/**
 * The specs in the order they run in, by a dry run of mocha. Many are made by loops: only
 * running the files tells.
 *
 * @throws Error with what mocha said, when the files cannot be loaded or two specs share all titles
 */
export function listSpecs(): SpecPath[] {
  const directory = mkdtempSync(join(tmpdir(), 'portwide-uml-list-'));
  try {
    const config = join(directory, 'mocharc.json');
    const results = join(directory, 'results');
    writeFileSync(config, mochaConfig());
    const { status, stdout, stderr } = spawnSync(
      process.execPath,
      [...mochaCommand(config), '--dry-run'],
      {
        encoding: 'utf8',
        env: { ...process.env, UML_RESULTS: results, [BUNDLE_VARIABLE]: BUNDLE },
      },
    );
    if (status !== 0) throw new Error(`the specs cannot be listed:\n${stdout}${stderr}`);
    const paths = parseResults(readFileSync(results, 'utf8'))
      .filter(({ kind }) => kind === 'passed')
      .map(({ path }) => path);
    const full = paths.map((path) => path.join(' '));
    const twin = full.find((title, index) => full.indexOf(title) !== index);
    if (twin !== undefined) throw new Error(`two specs are called ${twin}`);
    return paths;
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}
