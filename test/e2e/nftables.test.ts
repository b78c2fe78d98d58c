import assert from 'node:assert/strict';
import { createLab, type Lab } from '../lab/lab.ts';
import { AGENT_FLAGS, Agent } from './agent.ts';
import { SCENARIOS } from './scenarios/all.ts';
import { World } from './scenarios/scenario.ts';

describe('packets through nftables', () => {
  let lab: Lab;
  let agent: Agent;

  before(async () => {
    lab = await createLab({ pods: 2, remotePods: 1 });
    await Promise.all([...lab.pods, ...lab.remotePods].map((pod) => pod.serveEveryPort()));
    // Old elements are deleted after new ones have been added (nftables/phases.ts).
    agent = new Agent(lab, { syncs: 2 });
    await agent.start([...AGENT_FLAGS, '--proxy-mode=nftables']);
  });

  after(async () => {
    await agent?.destroy();
    await lab?.destroy();
  });

  for (const [subject, scenarios] of Object.entries(SCENARIOS)) {
    describe(subject, () => {
      for (const family of [4, 6] as const) {
        for (const { title, impossible, run } of scenarios) {
          const reason = impossible?.nftables;
          if (reason === undefined) {
            it(`IPv${family}: ${title}`, () => run(new World(lab, agent, family)));
          } else {
            it(`IPv${family}: ${title} (not in this mode: ${reason})`, () => assert.ok(reason));
          }
        }
      }
    });
  }
});
