import Mocha, { type MochaOptions, type Runner } from 'mocha';

/** Mocha's spec output, closed by a line of its own that CI can read. */
export default class Reporter extends Mocha.reporters.Spec {
  constructor(runner: Runner, options: MochaOptions) {
    super(runner, options);
    runner.once(Mocha.Runner.constants.EVENT_RUN_END, () => {
      console.log(`${this.stats.passes} passed, ${this.stats.failures} failed`);
    });
  }
}
