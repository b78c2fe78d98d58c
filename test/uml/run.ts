/** Runs specs inside a kernel and reads their results from outside. */
import { waitFor } from '../lab/lab.ts';
import { BUNDLE, BUNDLE_VARIABLE } from '../portwide.ts';
import { type BootOptions, bootUml, INSIDE } from './boot.ts';
import { STOCK_KERNEL } from './kernels.ts';
import { errorOf, parseResults, type Result, type SpecPath } from './results.ts';
import { mochaCommand, mochaConfig } from './specs.ts';

const CONFIG = 'mocharc.json';
const RESULTS = 'results';
/** Factor for deadlines: QEMU may emulate the processor. */
const PATIENCE = STOCK_KERNEL === undefined ? 1 : 8;
/** The slowness of a quiet machine. */
const QUIET_SLOWNESS = 2;
/** Milliseconds from the start of the kernel to the first spec. */
const BOOT_MS = 90_000;
/**
 * Milliseconds for one result; more than the limits of a spec and its hooks inside, on a quiet
 * machine. In a stock kernel some specs set their own limit, up to 240 s times PATIENCE.
 */
const RESULT_MS = STOCK_KERNEL === undefined ? 270_000 : 1_080_000;
/** Milliseconds from the last result to the end of the kernel. */
const END_MS = 60_000;

/** Promises that time out reject with the output of the kernel and mocha. */
export interface Run {
  /** Resolves when mocha runs inside. */
  began(): Promise<void>;
  /** Resolves when the spec has passed; rejects with its failure. */
  passed(path: SpecPath): Promise<void>;
  /**
   * Resolves when the kernel has ended after mocha; rejects if anything other than a spec failed.
   */
  ended(): Promise<void>;
  /** Output of mocha and the specs. */
  output(): string;
  /** Kills the kernel. */
  stop(): Promise<void>;
}

export interface RunOptions extends Pick<BootOptions, 'timeoutSeconds' | 'init'> {
  /** Default: all. */
  readonly only?: readonly SpecPath[];
  /** Default: the files of specs/, in a stock kernel also files of other tests. */
  readonly specs?: readonly string[];
  /** Factor for timeouts, relative to a quiet machine. Default: 2. */
  readonly slowness?: number;
}

/** Boots a kernel and runs specs in it with mocha. */
export function runInside({ only, specs, slowness = QUIET_SLOWNESS, ...options }: RunOptions): Run {
  const command = mochaCommand(`${INSIDE}/${CONFIG}`);
  const environment = [
    `UML_RESULTS=${INSIDE}/${RESULTS}`,
    // Compiling an agent's modules takes half of its start time.
    `NODE_COMPILE_CACHE=${INSIDE}/compile-cache`,
    `${BUNDLE_VARIABLE}=${BUNDLE}`,
    `PORTWIDE_KERNEL=${STOCK_KERNEL ?? ''}`,
    `PORTWIDE_PATIENCE=${(PATIENCE * slowness) / QUIET_SLOWNESS}`,
    `UML_KILLS=${process.env.UML_KILLS ?? ''}`,
  ];
  const kernel = bootUml({
    command: ['env', ...environment, 'node', ...command],
    files: { [CONFIG]: mochaConfig(only, specs, slowness) },
    ...options,
  });
  const results = () => parseResults(kernel.read(RESULTS));
  const status = () => kernel.read('status').trim();

  let quoted = false;
  const timeoutError = (what: string): Error => {
    const hooks = results().filter(({ kind }) => kind === 'failed hook');
    // Quote the output only once: all specs fail after the kernel died.
    const details = quoted ? 'The output is quoted in the first failure.' : kernel.output();
    quoted = true;
    return new Error(
      [
        `timed out waiting for ${what}`,
        `The kernel ${kernel.ended === undefined ? 'still runs' : `has ended: ${kernel.ended}`}.`,
        `mocha ${status() === '' ? 'has not ended' : `has ended with ${status()}`}.`,
        ...hooks.map(({ path, message = '', stack = message }) => `${path.join(' ')}: ${stack}`),
        details,
      ].join('\n'),
    );
  };
  const find = async (what: string, deadlineMs: number, matches: (result: Result) => boolean) => {
    let found: Result | undefined;
    const isDone = () => {
      // Read before the file: results missing after the end will not appear.
      const hasEnded = kernel.ended !== undefined;
      found = results().find(matches);
      return found !== undefined || hasEnded;
    };
    await waitFor(what, isDone, deadlineMs).catch(() => undefined);
    if (found === undefined) throw timeoutError(what);
    return found;
  };

  return {
    began: async () => {
      await find('mocha to start inside', BOOT_MS * PATIENCE, ({ kind }) => kind === 'began');
    },
    passed: async (path) => {
      const result = await find('a result of this spec', RESULT_MS * slowness, (one) =>
        decides(one, path),
      );
      if (result.kind !== 'passed') throw errorOf(result);
    },
    ended: async () => {
      await waitFor('the kernel has ended', () => kernel.ended, END_MS).catch(() => undefined);
      const hooks = results().some(({ kind }) => kind === 'failed hook');
      if (kernel.ended === undefined || status() === '' || hooks) {
        throw timeoutError('an end without failures other than those of specs');
      }
    },
    output: () => kernel.read('output'),
    stop: kernel.stop,
  };
}

/** Whether a result belongs to a spec: its own result, or a failed hook around it. */
function decides({ kind, path }: Result, spec: SpecPath): boolean {
  const isHook = kind === 'failed hook';
  const titles = isHook ? path.slice(0, -1) : path;
  if (!isHook && titles.length !== spec.length) return false;
  return titles.every((title, depth) => title === spec[depth]);
}
