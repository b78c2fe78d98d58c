import { createLab, type Lab } from '../lab/lab.ts';
import { Agent, IPTABLES_FLAGS } from './agent.ts';
import { SCENARIOS } from './scenarios/all.ts';
import { World } from './scenarios/scenario.ts';

for (const variant of ['nft', 'legacy'] as const) {
  describe(`packets through iptables-${variant}`, () => {
    let lab: Lab;
    let agent: Agent;

    before(async () => {
      lab = await createLab({ pods: 2, remotePods: 1 });
      await Promise.all([...lab.pods, ...lab.remotePods].map((pod) => pod.serveEveryPort()));
      agent = new Agent(lab);
      await agent.start([...IPTABLES_FLAGS, `--iptables-variant=${variant}`]);
    });

    after(async () => {
      await agent?.destroy();
      await lab?.destroy();
    });

    for (const [subject, scenarios] of Object.entries(SCENARIOS)) {
      describe(subject, () => {
        for (const family of [4, 6] as const) {
          for (const [index, scenario] of scenarios.entries()) {
            // The rules are the same text for both variants, so one family of each scenario is
            // enough for legacy.
            if (variant === 'legacy' && (index % 2 === 0) !== (family === 4)) continue;
            it(`IPv${family}: ${scenario.title}`, () =>
              scenario.run(new World(lab, agent, family)));
          }
        }
      });
    }
  });
}
