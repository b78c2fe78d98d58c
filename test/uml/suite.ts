/**
 * Runs specs with one mocha in one kernel: user-mode-linux, or the stock kernel PORTWIDE_KERNEL. Each spec is a test
 * here that waits for the result from inside.
 */
import assert from 'node:assert/strict';
import { parseArgs } from 'node:util';
import { STOCK_KERNEL } from './kernels.ts';
import type { SpecPath } from './results.ts';
import { type Run, runInside } from './run.ts';
import { listSpecs } from './specs.ts';

const TITLE = `in ${STOCK_KERNEL === undefined ? 'user-mode-linux' : `Linux ${STOCK_KERNEL}`}`;
/** All specs in an emulated processor may take two hours. */
const TIMEOUT_SECONDS = STOCK_KERNEL === undefined ? 5400 : 9000;
/** Milliseconds to list the specs on a quiet machine with two cores. */
const QUIET_LISTING_MS = 3000;

/** The specs selected by mocha's command line; only these run inside. */
function selectSpecs(paths: readonly SpecPath[]): readonly SpecPath[] {
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
  // As mocha parses it: plain text, or a regular expression between slashes with flags.
  const [, pattern = grep, flags = ''] = /^\/(.*)\/([gimy]{0,4})$/.exec(grep) ?? [];
  const regexp = new RegExp(pattern, flags);
  return paths.filter((path) => titleOf(path).search(regexp) >= 0 !== invert);
}

/** Full title of a spec in the outer run. */
function titleOf(path: SpecPath): string {
  return [TITLE, ...path].join(' ');
}

/**
 * Defines a test for each spec of one half of the suites. The halves run in two kernels at once, because
 * user-mode-linux has one processor. A stock kernel runs all of them as the first half.
 */
export function defineSpecs(half: 0 | 1): void {
  const listing = performance.now();
  const all = listSpecs();
  /** Timeouts adapt to the machine: one with other load is slow outside and inside. */
  const slowness = Math.max(2, (performance.now() - listing) / QUIET_LISTING_MS);
  const suites = [...Map.groupBy(all, ([suite]) => suite).values()];
  const isOurs = (index: number) => (STOCK_KERNEL === undefined ? index % 2 : 0) === half;
  const specs = suites.filter((_, index) => isOurs(index)).flat();
  const selected = selectSpecs(specs);
  let run: Run | undefined;

  const started = (): Run => {
    run ??= runInside({ only: selected, timeoutSeconds: TIMEOUT_SECONDS, slowness });
    return run;
  };

  // A hook of the whole mocha run, not of the suite below: mocha runs the other test files while the
  // kernel runs the specs, and this file last.
  before(() => {
    if (selected.length > 0) started();
  });
  after(async () => {
    if (process.env.UML_OUTPUT) console.log(run?.output());
    await run?.stop();
  });

  if (half === 0 && process.env.UML_SPECS === undefined && STOCK_KERNEL === undefined)
    describe('uml: slow specs', () => {
      it('splits a slow spec into one test for each point at which an agent is killed', () => {
        const kills = all.filter(([suite = '']) => / killed between two messages$/.test(suite));
        assert.ok(kills.length >= 30, String(kills.length));
        for (const [, title = ''] of kills)
          assert.match(title, /, after [\d.]+ % of the messages$/);
      });
    });

  describe(TITLE, function () {
    // The run has its own timeouts with better messages.
    this.timeout(0);
    before(() => started().began());

    /** Defines the suites and tests of specs whose titles agree up to `depth`. */
    const define = (paths: readonly SpecPath[], depth: number): void => {
      for (const [title, group] of Map.groupBy(paths, (path) => path[depth] ?? '')) {
        const [first] = group;
        if (first?.length === depth + 1) it(title, () => started().passed(first));
        else describe(title, () => define(group, depth + 1));
      }
    };
    define(specs, 0);

    // A separate suite, because a suite runs its own tests before nested suites.
    describe('at the end', () => {
      it('the kernel exits by itself, without failures outside tests', () => started().ended());
    });
  });
}
