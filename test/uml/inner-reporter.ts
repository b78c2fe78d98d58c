import { appendFileSync } from 'node:fs';
import Mocha, { type MochaOptions, type Runner } from 'mocha';
import type { Result } from './results.ts';

/** Mocha's spec reporter that also writes each result as a line to the file UML_RESULTS. */
export default class InnerReporter extends Mocha.reporters.Spec {
  constructor(runner: Runner, options: MochaOptions) {
    super(runner, options);
    const { constants } = Mocha.Runner;
    runner.once(constants.EVENT_RUN_BEGIN, () => write({ kind: 'began', path: [] }));
    runner.on(constants.EVENT_TEST_PASS, (test) =>
      write({ kind: 'passed', path: test.titlePath() }),
    );
    // Failed hooks are reported here too.
    runner.on(constants.EVENT_TEST_FAIL, (failed, error: Error) => {
      const kind = failed instanceof Mocha.Hook ? 'failed hook' : 'failed';
      const { message, stack } = error;
      write({ kind, path: failed.titlePath(), message, ...(stack === undefined ? {} : { stack }) });
    });
    runner.once(constants.EVENT_RUN_END, () => write({ kind: 'ended', path: [] }));
  }
}

function write(result: Result): void {
  const file = process.env.UML_RESULTS;
  if (file === undefined) throw new Error('UML_RESULTS is not set');
  appendFileSync(file, `${JSON.stringify(result)}\n`);
}
