/** A run of specs inside a kernel, followed from outside. */
import { waitFor } from '../lab/lab.ts';
import { BUNDLE, BUNDLE_VARIABLE } from '../portwide.ts';
import { type BootOptions, bootUml, INSIDE } from './boot.ts';
import { errorOf, parseResults, type Result, type SpecPath } from './results.ts';
import { mochaCommand, mochaConfig } from './specs.ts';

const CONFIG = 'mocharc.json';
const RESULTS = 'results';
/** From the start of the kernel to the first spec. */
const BOOT_MS = 90_000;
/** For one result; more than a spec and its hooks may take inside, on a quiet machine. */
const RESULT_MS = 270_000;
/** From the last result to the end of the kernel. */
const END_MS = 60_000;

/** Promises reject with what the kernel and mocha said when they have to wait in vain. */
export interface Run {
  /** Settles when mocha runs inside. */
  began(): Promise<void>;
  /** Settles when the spec passed; rejects as it failed inside. */
  passed(path: SpecPath): Promise<void>;
  /** Settles when the kernel ended after mocha; rejects when anything but a spec failed. */
  ended(): Promise<void>;
  /** What mocha and the specs printed. */
  output(): string;
  /** Ends the kernel. */
  stop(): Promise<void>;
}

export interface RunOptions extends Pick<BootOptions, 'timeoutSeconds' | 'init'> {
  /** Default: all. */
  readonly only?: readonly SpecPath[];
  /** Default: those of specs/. */
  readonly specs?: string;
  /** How many times longer than on a quiet machine a spec may take. Default: 2. */
  readonly slowness?: number;
}

/** Boots a kernel and has mocha run specs in it. */
export function runInside({ only, specs, slowness = 2, ...options }: RunOptions): Run {
  const command = mochaCommand(`${INSIDE}/${CONFIG}`);
  const environment = [
    `UML_RESULTS=${INSIDE}/${RESULTS}`,
    // To compile an agent's modules anew takes half of its start.
    `NODE_COMPILE_CACHE=${INSIDE}/compile-cache`,
    `${BUNDLE_VARIABLE}=${BUNDLE}`,
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
  const inVain = (what: string): Error => {
    const hooks = results().filter(({ kind }) => kind === 'failed hook');
    // Once is enough: a kernel that died fails every spec after.
    const said = quoted ? 'What it said stands at the first failure.' : kernel.output();
    quoted = true;
    return new Error(
      [
        `waited in vain for ${what}`,
        `The kernel ${kernel.ended === undefined ? 'still runs' : `has ended: ${kernel.ended}`}.`,
        `mocha ${status() === '' ? 'has not ended' : `has ended with ${status()}`}.`,
        ...hooks.map(({ path, message = '', stack = message }) => `${path.join(' ')}: ${stack}`),
        said,
      ].join('\n'),
    );
  };
  const find = async (what: string, deadlineMs: number, wanted: (result: Result) => boolean) => {
    let found: Result | undefined;
    const look = () => {
      // Asked before the file is read: what is not there after the end never will be.
      const over = kernel.ended !== undefined;
      found = results().find(wanted);
      return found !== undefined || over;
    };
    await waitFor(what, look, deadlineMs).catch(() => undefined);
    if (found === undefined) throw inVain(what);
    return found;
  };

  return {
    began: async () => {
      await find('mocha to start inside', BOOT_MS, ({ kind }) => kind === 'began');
    },
    passed: async (path) => {
      const result = await find('a result of this spec', RESULT_MS * slowness, (one) =>
        decides(one, path),
      );
      if (result.kind !== 'passed') throw errorOf(result);
    },
    ended: async () => {
      await waitFor('the kernel ended', () => kernel.ended, END_MS).catch(() => undefined);
      const hooks = results().some(({ kind }) => kind === 'failed hook');
      if (kernel.ended === undefined || status() === '' || hooks) {
        throw inVain('an end without failures but those of specs');
      }
    },
    output: () => kernel.read('output'),
    stop: kernel.stop,
  };
}

/** Whether a result tells the fate of a spec: its own does, and a hook's that failed around it. */
function decides({ kind, path }: Result, spec: SpecPath): boolean {
  const isHook = kind === 'failed hook';
  const titles = isHook ? path.slice(0, -1) : path;
  if (!isHook && titles.length !== spec.length) return false;
  return titles.every((title, depth) => title === spec[depth]);
}
