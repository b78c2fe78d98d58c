import assert from 'node:assert/strict';
import { ChildProcess } from 'node:child_process';
import { mock } from 'node:test';
import { ExecaError } from 'execa';
import { readProgram, runProgram } from '../../process/run-program.ts';
import { waitFor } from '../lab/lab.ts';
import { FakePrograms } from './fake-programs.ts';

/** Time limit for a program that hangs; the test waits for nothing else. */
const SHORT = 100;
/** Time limit for a program that ends. */
const LONG = 60_000;

describe('run-program: an external program', () => {
  const programs = new FakePrograms();
  beforeEach(() => programs.install());
  afterEach(() => programs.remove());

  it('returns the output for an input', async () => {
    programs.write('upper', 'tr a-z A-Z');
    assert.equal(await runProgram('upper', [], { timeout: LONG, input: 'abc' }), 'ABC');
  });

  it('reads the output line by line', async () => {
    programs.write('lines', 'printf "a\\nb\\n"');
    const lines = await readProgram('lines', [], LONG, collected);
    assert.deepEqual(lines, ['a', 'b']);
  });

  it('throws with exit code and standard error', async () => {
    programs.write('fails', 'echo no >&2; exit 3');
    await assert.rejects(runProgram('fails', [], { timeout: LONG }), (error) => {
      return error instanceof ExecaError && error.exitCode === 3 && error.stderr === 'no';
    });
    await assert.rejects(runProgram('no-such-program', [], { timeout: LONG }), { code: 'ENOENT' });
  });

  for (const [how, name, script] of [
    ['waits forever', 'waits', 'exec sleep 1000'],
    ['ignores SIGTERM', 'ignores', "trap '' TERM; sleep 30; sleep 30"],
    ['has children that hold its output open', 'forks', 'sleep 30 & wait'],
    ['exits before children that hold its output open', 'leaves', 'sleep 30 &'],
  ] as const) {
    it(`kills a program that ${how} after its time limit, and can run it again`, async () => {
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
      await waitFor('the process to exit', () => !isAlive(pid));
      await assert.rejects(readProgram(name, ['-t', 'nat'], SHORT, collected), expected);
    });
  }

  it('does not start a program again before the killed process has exited', async () => {
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
        '"stuck" was not started: an earlier stuck exceeded its time limit, was killed and has not exited',
    });
    process.kill(pid, 'SIGKILL');
    programs.write('stuck', 'echo well');
    await waitFor('the program to run again', async () => {
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
