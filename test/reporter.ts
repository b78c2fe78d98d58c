import Mocha, { type MochaOptions, type Runner } from 'mocha';

/** Mocha's spec reporter with a final line that CI parses. */
export default class Reporter extends Mocha.reporters.Spec {
  constructor(runner: Runner, options: MochaOptions) {
    super(runner, options);
    runner.once(Mocha.Runner.constants.EVENT_RUN_END, () => {
      console.log(`${this.stats.passes} passed, ${this.stats.failures} failed`);
    });
  }
}
