import assert from 'node:assert/strict';
import type { Child } from '../child.ts';
import { type Host, waitFor } from '../lab/lab.ts';
import type { AgentFunctions } from '../policy/fqdn/agent.ts';
import { addressOf } from '../policy/fqdn/dns-server.ts';
import { createFqdnLab, type FqdnLab, PORT, VIP } from '../policy/fqdn/fqdn-lab.ts';

/** SIGSTOP stops all threads of the process, like a debugger, a frozen cgroup or swapping. */
describe('dns-snooper: a stopped agent', () => {
  let fqdnLab: FqdnLab;
  let selected: Host;
  let unselected: Host;
  let agent: Child<AgentFunctions>;

  before(async () => {
    fqdnLab = await createFqdnLab();
    [selected, unselected] = fqdnLab.pods;
    agent = await fqdnLab.agent();
  });
  afterEach(() => agent.signal('SIGCONT'));
  after(() => fqdnLab?.[Symbol.asyncDispose]());

  /** @param seconds that a client waits. @returns the address in the answer. */
  const lookup = async (pod: Host, number: number, seconds: number, ...args: string[]) => {
    const options = ['+short', '+tries=1', `+time=${seconds}`, ...args];
    const name = `a${number}.example.com`;
    const { stdout } = await pod.exec('dig', [...options, `@${VIP[4]}`, name], { reject: false });
    return stdout === addressOf(number, 'A');
  };
  const reaches = async (number: number) =>
    (await selected.tcp(addressOf(number, 'A'), PORT, { timeoutMs: 1000 })).outcome === 'answered';

  it('delays no lookup of pods that no policy with domain names selects', async () => {
    agent.signal('SIGSTOP');
    for (const protocol of ['+notcp', '+tcp']) {
      for (let number = 1; number <= 6; number++)
        assert.ok(await lookup(unselected, number, 20, protocol));
    }
  });

  it('answers selected pods again, learns nothing meanwhile, and learns when it continues', async () => {
    await waitFor('it learns', async () => {
      await lookup(selected, 11, 5);
      return await reaches(11);
    });
    agent.signal('SIGSTOP');
    await waitFor('lookups are answered again', () => lookup(selected, 12, 1));
    for (const protocol of ['+notcp', '+tcp']) {
      for (let number = 13; number <= 18; number++)
        assert.ok(await lookup(selected, number, 20, protocol));
    }
    assert.equal(await reaches(13), false);
    assert.equal(await reaches(11), true);
    agent.signal('SIGCONT');
    await waitFor('it learns again', async () => {
      await lookup(selected, 13, 5);
      return await reaches(13);
    });
  });
});
