import assert from 'node:assert/strict';
import { execa } from 'execa';
import { validate } from '../cmd/validate.ts';

const file = (path: string) => new URL(`../${path}`, import.meta.url).pathname;

describe('what users are shown', () => {
  it('the examples have no faults', () => {
    assert.deepEqual(validate(file('examples'), { AllPorts: true }).problems, []);
  });

  it('the demo sees everything that it claims', async () => {
    const { stdout } = await execa(process.execPath, [file('test/lab/demo.ts'), '7']);
    assert.match(stdout, /Everything above was seen on real packets/);
    for (const line of stdout.split('\n')) assert.ok(line.length <= 100, line);
  });
});
