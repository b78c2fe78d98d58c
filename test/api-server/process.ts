/**
 * Runs the API-server double as a process, for use in a network namespace. Prints its port, then
 * one line of output for each line of input: the result of a call of `Control`. Arguments: the port
 * (0 for any), and the options as JSON.
 */
import { createInterface } from 'node:readline';
import { ApiServerDouble, type DoubleOptions } from './double.ts';
import type { Call, Control } from './remote.ts';

const [port = '0', options = '{}'] = process.argv.slice(2);
const double = new ApiServerDouble(JSON.parse(options) as DoubleOptions);
const print = (value: unknown) => process.stdout.write(`${JSON.stringify(value)}\n`);
print({ result: await double.listen(Number(port)) });

const control: Control = double;
for await (const line of createInterface({ input: process.stdin })) {
  const [method, ...args] = JSON.parse(line) as Call;
  try {
    const call = control[method] as (...args: unknown[]) => unknown;
    print({ result: (await call.apply(double, args)) ?? null });
  } catch (error) {
    print({ error: String(error) });
  }
}
process.exit();
