import { type ChildProcess, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { execa } from 'execa';
import type { Methods, NetnsEvent, Reply } from './inhabitant.ts';

const HELPER = fileURLToPath(new URL('inhabitant.ts', import.meta.url));

/** A network namespace of the test's own, gone with everything in it when disposed of. */
export interface Namespace extends AsyncDisposable {
  readonly name: string;
  /** Runs a command in it; its standard output. */
  run(command: string, ...args: string[]): Promise<string>;
  /** Starts a process in it that calls netlink/ on demand. */
  helper(...wrapper: string[]): NetnsHelper;
}

export async function createNamespace(): Promise<Namespace> {
  const name = `pw-nl-${randomBytes(4).toString('hex')}`;
  await execa('ip', ['netns', 'add', name]);
  const helpers: NetnsHelper[] = [];
  const namespace: Namespace = {
    name,
    async run(command, ...args) {
      return (await execa('ip', ['netns', 'exec', name, command, ...args])).stdout;
    },
    helper(...wrapper) {
      const helper = startNetnsHelper(name, wrapper);
      helpers.push(helper);
      return helper;
    },
    async [Symbol.asyncDispose]() {
      await Promise.all(helpers.map((inhabitant) => inhabitant.stop()));
      await execa('ip', ['netns', 'del', name]);
    },
  };
  try {
    await namespace.run('ip', 'link', 'set', 'lo', 'up');
    return namespace;
  } catch (error) {
    await namespace[Symbol.asyncDispose]();
    throw error;
  }
}

/** A namespace and a process in it. */
export interface NetnsFixture {
  readonly namespace: Namespace;
  readonly helper: NetnsHelper;
}

/**
 * One namespace, and one process in it, for all tests of the suite that calls this: the start of a process takes
 * longer than most tests. A test that fails leaves nothing behind: the next one has a namespace of its own.
 *
 * @param clean removes what a test left, after each that passed.
 * @returns gives the home; to be called before each test.
 */
export function sharedNetns(
  clean: (home: NetnsFixture) => Promise<unknown>,
): () => Promise<NetnsFixture> {
  let home: NetnsFixture | undefined;
  const leave = async () => {
    const { namespace } = home ?? {};
    home = undefined;
    await namespace?.[Symbol.asyncDispose]();
  };
  afterEach(async function () {
    if (home === undefined) return;
    if (this.currentTest?.state !== 'passed') return leave();
    await clean(home);
    home.helper.clearEvents();
  });
  after(leave);
  return async () => {
    if (home === undefined) {
      const namespace = await createNamespace();
      home = { namespace, helper: namespace.helper() };
    }
    return home;
  };
}

export interface NetnsHelper {
  call<K extends keyof Methods>(
    method: K,
    ...args: Parameters<Methods[K]>
  ): Promise<Awaited<ReturnType<Methods[K]>>>;
  /** What its watches have said so far. */
  readonly events: readonly NetnsEvent[];
  /** Drops what its watches have said so far. */
  clearEvents(): void;
  /** Waits for a notice that is not consumed by an earlier wait. */
  waitForEvent(what: string, wanted: (notice: NetnsEvent) => boolean): Promise<NetnsEvent>;
  stop(): Promise<void>;
}

/** Milliseconds until a wait gives up; nothing that works takes nearly as long. */
const WAIT_TIMEOUT = 30_000;

/** Starts such a process in a namespace that somebody else made. */
export function startNetnsHelper(namespace: string, wrapper: readonly string[] = []): NetnsHelper {
  const command = ['netns', 'exec', namespace, ...wrapper, process.execPath, HELPER];
  const child = spawn('ip', command, {
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
    // JSON would turn an argument that is undefined into null.
    serialization: 'advanced',
  });
  const exited = once(child, 'exit');
  const notices: NetnsEvent[] = [];
  const waiting = new Map<number, PromiseWithResolvers<unknown>>();
  let wake: (() => void) | undefined;
  let seen = 0;
  let calls = 0;

  child.on('message', (message: Reply | NetnsEvent) => {
    if (!('call' in message)) {
      notices.push(message);
      wake?.();
      return;
    }
    const call = waiting.get(message.call);
    waiting.delete(message.call);
    if (message.error === undefined) call?.resolve(message.result);
    else call?.reject(Object.assign(new Error(message.error.message), message.error));
  });
  child.on('exit', (code, signal) => {
    for (const call of waiting.values())
      call.reject(new Error(`inhabitant died: ${code ?? signal}`));
  });

  return {
    events: notices,
    call(method, ...args) {
      const result = Promise.withResolvers<unknown>();
      waiting.set(++calls, result);
      child.send({ call: calls, method, args });
      // The types of both ends are the same Methods.
      return result.promise as ReturnType<NetnsHelper['call']> as never;
    },
    clearEvents() {
      notices.length = 0;
      seen = 0;
    },
    async waitForEvent(what, wanted) {
      const deadline = performance.now() + WAIT_TIMEOUT;
      for (;;) {
        for (let notice = notices[seen]; notice !== undefined; notice = notices[seen]) {
          seen++;
          if (wanted(notice)) return notice;
        }
        const left = deadline - performance.now();
        const last = JSON.stringify(notices.at(-1));
        if (left <= 0) throw new Error(`waited in vain for ${what}; last heard: ${last}`);
        await new Promise<void>((resolve) => {
          const timer = setTimeout(resolve, left);
          wake = () => {
            clearTimeout(timer);
            resolve();
          };
        });
      }
    },
    async stop() {
      if (isRunning(child)) child.kill('SIGKILL');
      await exited;
    },
  };
}

function isRunning(child: ChildProcess): boolean {
  return child.exitCode === null && child.signalCode === null;
}
