import { type ChildProcess, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { execa } from 'execa';
import type { Methods, NetnsEvent, Reply } from './netns-helper.ts';

const HELPER = fileURLToPath(new URL('netns-helper.ts', import.meta.url));

/** A network namespace for a test. Disposing deletes it with its content. */
export interface Namespace extends AsyncDisposable {
  readonly name: string;
  /** Runs a command in the namespace. @returns its standard output. */
  run(command: string, ...args: string[]): Promise<string>;
  /** Starts a process in the namespace that calls netlink/ on demand. */
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
      await Promise.all(helpers.map((helper) => helper.stop()));
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

/** A namespace with a helper process. */
export interface NetnsFixture {
  readonly namespace: Namespace;
  readonly helper: NetnsHelper;
}

/**
 * Shares one namespace and one helper process among the tests of a suite, because starting a
 * process takes longer than most tests. After a failed test, the next test gets a new namespace.
 *
 * @param clean Removes leftover state of a test; called after each test that passed.
 * @returns a function that returns the fixture; call it before each test.
 */
export function sharedNetns(
  clean: (fixture: NetnsFixture) => Promise<unknown>,
): () => Promise<NetnsFixture> {
  let fixture: NetnsFixture | undefined;
  const dispose = async () => {
    const { namespace } = fixture ?? {};
    fixture = undefined;
    await namespace?.[Symbol.asyncDispose]();
  };
  afterEach(async function () {
    if (fixture === undefined) return;
    if (this.currentTest?.state !== 'passed') return dispose();
    await clean(fixture);
    fixture.helper.clearEvents();
  });
  after(dispose);
  return async () => {
    if (fixture === undefined) {
      const namespace = await createNamespace();
      fixture = { namespace, helper: namespace.helper() };
    }
    return fixture;
  };
}

export interface NetnsHelper {
  call<K extends keyof Methods>(
    method: K,
    ...args: Parameters<Methods[K]>
  ): Promise<Awaited<ReturnType<Methods[K]>>>;
  /** Events of its watches so far. */
  readonly events: readonly NetnsEvent[];
  /** Discards the events so far. */
  clearEvents(): void;
  /** Waits for an event that no earlier wait consumed. */
  waitForEvent(what: string, matches: (event: NetnsEvent) => boolean): Promise<NetnsEvent>;
  stop(): Promise<void>;
}

/** Milliseconds until a wait fails, far longer than a working test takes. */
const WAIT_TIMEOUT = 30_000;

/** Starts a helper process in an existing namespace. */
export function startNetnsHelper(namespace: string, wrapper: readonly string[] = []): NetnsHelper {
  const command = ['netns', 'exec', namespace, ...wrapper, process.execPath, HELPER];
  const child = spawn('ip', command, {
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
    // JSON would turn an undefined argument into null.
    serialization: 'advanced',
  });
  const exited = once(child, 'exit');
  const events: NetnsEvent[] = [];
  const waiting = new Map<number, PromiseWithResolvers<unknown>>();
  let wake: (() => void) | undefined;
  let consumed = 0;
  let calls = 0;

  child.on('message', (message: Reply | NetnsEvent) => {
    if (!('call' in message)) {
      events.push(message);
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
      call.reject(new Error(`namespace helper exited: ${code ?? signal}`));
  });

  return {
    events,
    call(method, ...args) {
      const result = Promise.withResolvers<unknown>();
      waiting.set(++calls, result);
      child.send({ call: calls, method, args });
      // Both ends use the same Methods type.
      return result.promise as ReturnType<NetnsHelper['call']> as never;
    },
    clearEvents() {
      events.length = 0;
      consumed = 0;
    },
    async waitForEvent(what, matches) {
      const deadline = performance.now() + WAIT_TIMEOUT;
      for (;;) {
        for (let event = events[consumed]; event !== undefined; event = events[consumed]) {
          consumed++;
          if (matches(event)) return event;
        }
        const left = deadline - performance.now();
        const last = JSON.stringify(events.at(-1));
        if (left <= 0) throw new Error(`timed out waiting for ${what}; last event: ${last}`);
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
