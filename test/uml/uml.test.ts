/**
 * The specs of test/uml/specs, run by one mocha in one kernel of user-mode-linux. Each is a test here
 * that waits for its result from inside.
 */
import assert from 'node:assert/strict';
import { parseArgs } from 'node:util';
import type { SpecPath } from './results.ts';
import { type Run, runInside } from './run.ts';
import { listSpecs } from './specs.ts';

const TITLE = 'in user-mode-linux';
const TIMEOUT_SECONDS = 5400;
/** Milliseconds that it takes to list the specs on a quiet machine of two cores. */
const QUIET_LISTING_MS = 3000;

/** The specs that mocha was told to run, by its command line: only those are run inside. */
function picked(paths: readonly SpecPath[]): readonly SpecPath[] {
  const { values } = parseArgs({
    strict: false,
    options: {
      grep: { type: 'string', short: 'g' },
      fgrep: { type: 'string', short: 'f' },
      invert: { type: 'boolean', short: 'i' },
    },
  });
  const { grep, fgrep, invert = false } = values;
  if (typeof fgrep === 'string') {
    return paths.filter((path) => titleOf(path).includes(fgrep) !== invert);
  }
  if (typeof grep !== 'string') return paths;
  // As mocha reads it: plain, or between slashes with flags.
  const [, pattern = grep, flags = ''] = /^\/(.*)\/([gimy]{0,4})$/.exec(grep) ?? [];
  const regexp = new RegExp(pattern, flags);
  return paths.filter((path) => titleOf(path).search(regexp) >= 0 !== invert);
}

/** A spec's full title in the run outside. */
function titleOf(path: SpecPath): string {
  return [TITLE, ...path].join(' ');
}

const listing = performance.now();
const specs = listSpecs();
/** Limits follow what the machine does: one with other work is slow here and inside alike. */
const slowness = Math.max(2, (performance.now() - listing) / QUIET_LISTING_MS);
const wanted = picked(specs);
let run: Run | undefined;

function started(): Run {
  run ??= runInside({ only: wanted, timeoutSeconds: TIMEOUT_SECONDS, slowness });
  return run;
}

// Of the whole mocha run, not of the suite below: while the kernel is busy with the specs, mocha goes
// on with the tests of the other files, and comes here last.
before(() => {
  if (wanted.length > 0) started();
});
after(async () => {
  if (process.env.UML_OUTPUT) console.log(run?.output());
  await run?.stop();
});

describe('what takes long in user-mode-linux', () => {
  it('is split: each point at which an agent is killed is a test of its own', () => {
    const kills = specs.filter(([suite = '']) => / killed between two messages$/.test(suite));
    assert.ok(kills.length >= 30, String(kills.length));
    for (const [, title = ''] of kills) assert.match(title, /, after [\d.]+ % of the messages$/);
  });
});

describe(TITLE, function () {
  // The run has deadlines of its own, and says more when one has passed.
  this.timeout(0);
  before(() => started().began());

  /** Makes the suites and tests of specs whose titles agree up to `depth`. */
  const define = (paths: readonly SpecPath[], depth: number): void => {
    for (const [title, group] of Map.groupBy(paths, (path) => path[depth] ?? '')) {
      const [first] = group;
      if (first?.length === depth + 1) it(title, () => started().passed(first));
      else describe(title, () => define(group, depth + 1));
    }
  };
  define(specs, 0);

  // A suite of its own, for a suite's own tests run before those of the suites in it.
  describe('at the end', () => {
    it('the kernel ends by itself, and nothing failed outside of a test', () => started().ended());
  });
});
