import assert from 'node:assert/strict';
import { AGENT_FLAGS, Agent } from '../../e2e/agent.ts';
import { SCENARIOS } from '../../e2e/scenarios/all.ts';
import { World } from '../../e2e/scenarios/scenario.ts';
import { createLab, type Lab } from '../../lab/lab.ts';

const MODE = ['--proxy-mode=ipvs', '--iptables-variant=legacy'];
/** Starting a process takes some ten times as long inside. */
const PATIENCE = 10;

describe('packets through IPVS', () => {
  let lab: Lab;
  let agent: Agent;

  before(async () => {
    lab = await createLab({ pods: 2, remotePods: 1, podRules: 'legacy' });
    await Promise.all([...lab.pods, ...lab.remotePods].map((pod) => pod.serveEveryPort()));
    agent = new Agent(lab, { syncs: 2 });
    await agent.start([...AGENT_FLAGS, ...MODE]);
  });

  after(async () => {
    await agent?.destroy();
    await lab?.destroy();
  });

  for (const [subject, scenarios] of Object.entries(SCENARIOS)) {
    describe(subject, () => {
      for (const family of [4, 6] as const) {
        for (const { title, impossible, run } of scenarios) {
          const reason = impossible?.ipvs;
          if (reason === undefined) {
            it(`IPv${family}: ${title}`, () => run(new World(lab, agent, family, PATIENCE)));
          } else {
            it(`IPv${family}: ${title} (not in this mode: ${reason})`, () => assert.ok(reason));
          }
        }
      }
    });
  }
});
