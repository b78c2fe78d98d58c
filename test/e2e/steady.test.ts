/** The short form of `make soak`: what must hold whatever happens, without memory, which needs many minutes. */
import assert from 'node:assert/strict';
import { failuresOf, runSteady, type SteadyReport } from './steady/run.ts';
import { createStage, type Stage } from './steady/stage.ts';

describe('agents under changes, faults and traffic', function () {
  this.timeout(300_000);
  let stage: Stage;
  let report: SteadyReport;

  before(async () => {
    stage = await createStage();
    report = await runSteady(stage, {
      seed: 20_261_123,
      kept: 40,
      passing: 100,
      rounds: 2,
      stepsPerRound: 60,
      changesPerStep: 5,
      connections: 100,
      faults: { kill: 45, flush: 25, cut: 8, restart: 40 },
    });
  });
  after(() => stage?.destroy());

  it('loses no connection, leaves nothing stale, and holds no more threads and descriptors', () => {
    assert.deepEqual(failuresOf(report), []);
  });

  it('met every fault, and made connections all the time', () => {
    const { faults, traffic } = report;
    assert.deepEqual(
      Object.entries(faults).filter(([, count]) => count === 0),
      [],
    );
    for (const { opened, exchanges, datagrams } of Object.values(traffic)) {
      assert.ok(
        Math.min(opened, exchanges, datagrams) > 100,
        `${opened} ${exchanges} ${datagrams}`,
      );
    }
  });
});
