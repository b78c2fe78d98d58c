import assert from 'node:assert/strict';
import { ChildProcess } from 'node:child_process';
import { mock } from 'node:test';
import { ExecaError } from 'execa';
import { readProgram, runProgram } from '../../process/run-program.ts';
import { waitFor } from '../lab/lab.ts';
import { FakePrograms } from './fake-programs.ts';

/** Of a program that hangs: nothing waits for it to do anything. */
const SHORT = 100;
/** Of one that ends. */
const LONG = 60_000;

describe('run-program: a program that is run', () => {
  const programs = new FakePrograms();
  beforeEach(() => programs.install());
  afterEach(() => programs.remove());

  it('gets its input, and gives its output', async () => {
    programs.write('upper', 'tr a-z A-Z');
    assert.equal(await runProgram('upper', [], { timeout: LONG, input: 'abc' }), 'ABC');
  });

  it('is read line by line', async () => {
    programs.write('lines', 'printf "a\\nb\\n"');
    const lines = await readProgram('lines', [], LONG, collected);
    assert.deepEqual(lines, ['a', 'b']);
  });

  it('fails with what it said', async () => {
    programs.write('fails', 'echo no >&2; exit 3');
    await assert.rejects(runProgram('fails', [], { timeout: LONG }), (error) => {
      return error instanceof ExecaError && error.exitCode === 3 && error.stderr === 'no';
    });
    await assert.rejects(runProgram('no-such-program', [], { timeout: LONG }), { code: 'ENOENT' });
  });

  for (const [how, name, script] of [
    ['waits for ever', 'waits', 'exec sleep 1000'],
    ['does not end when it is asked to', 'ignores', "trap '' TERM; sleep 30; sleep 30"],
    ['has children that hold its output', 'forks', 'sleep 30 & wait'],
    ['ends before children that hold its output', 'leaves', 'sleep 30 &'],
  ] as const) {
    it(`that ${how} is killed at the end of its time, and can be run again`, async () => {
      programs.write(name, script);
      const expected = {
        name: 'ProgramTimeoutError',
        message: `"${name} -t nat" exceeded its time limit of 0.1 s and was killed`,
        program: name,
        timeout: SHORT,
      };
      let pid = 0;
      const onStart = (started: number) => {
        pid = started;
      };
      await assert.rejects(runProgram(name, ['-t', 'nat'], { timeout: SHORT, onStart }), expected);
      await waitFor('the process has ended', () => !isAlive(pid));
      await assert.rejects(readProgram(name, ['-t', 'nat'], SHORT, collected), expected);
    });
  }

  it('is not started again while it cannot be killed', async () => {
    programs.write('stuck', 'exec sleep 1000');
    let pid = 0;
    const kill = mock.method(ChildProcess.prototype, 'kill', () => true);
    try {
      const onStart = (started: number) => {
        pid = started;
      };
      await assert.rejects(runProgram('stuck', [], { timeout: SHORT, onStart }), /was killed/);
    } finally {
      kill.mock.restore();
    }
    await assert.rejects(runProgram('stuck', [], { timeout: LONG }), {
      name: 'ProgramTimeoutError',
      message:
        '"stuck" was not started: stuck exceeded a time limit, was killed and has not exited',
    });
    process.kill(pid, 'SIGKILL');
    programs.write('stuck', 'echo well');
    await waitFor('it can be run', async () => {
      return (await runProgram('stuck', [], { timeout: LONG }).catch(() => '')) === 'well';
    });
  });
});

async function collected(lines: AsyncIterable<string>): Promise<string[]> {
  const all: string[] = [];
  for await (const line of lines) all.push(line);
  return all;
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}
