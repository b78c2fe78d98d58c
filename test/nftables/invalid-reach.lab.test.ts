import assert from 'node:assert/strict';
import { IP_FAMILIES } from '../../api/objects.ts';
import { nftFamily } from '../../nft/rule.ts';
import { route } from '../fixtures.ts';
import { createNamespace, type Namespace, type NetnsHelper } from '../netlink/namespace.ts';

const AGENT = 'invalid reach';

/**
 * What another program leaves in the table while no Service translates packets. The kernel refuses it later: chains with
 * DNAT must be reached from nat hooks only, and jumps must end.
 */
const CASES: readonly (readonly [title: string, script: string])[] = [
  [
    'a base chain of a filter hook that jumps to the Services',
    `add chain IP portwide foreign { type filter hook input priority 0; policy accept; }
     add rule IP portwide foreign jump services`,
  ],
  [
    'a base chain that reaches a chain with DNAT through a map',
    `add chain IP portwide internal-port-2
     add map IP portwide verdicts { type mark : verdict; elements = { 1 : jump internal-port-2 }; }
     add chain IP portwide foreign { type filter hook forward priority 0; policy accept; }
     add rule IP portwide foreign meta mark vmap @verdicts`,
  ],
  [
    'a verdict in a map of the agent',
    'add element IP portwide no-endpoint-ports { ADDRESS . tcp . 9 : goto services }',
  ],
  [
    'a base chain of a nat hook with as many jumps to the Services as the kernel takes',
    Array.from(
      { length: 14 },
      (_, at) => `add chain IP portwide foreign-${at}
     ${at === 0 ? '' : `add rule IP portwide foreign-${at} jump foreign-${at - 1}`}`,
    ).join('\n') +
      `
     add rule IP portwide foreign-0 jump services
     add chain IP portwide foreign { type nat hook output priority 0; policy accept; }
     add rule IP portwide foreign jump foreign-13`,
  ],
];

describe('invalid reach: chains of the agent that other objects reach', () => {
  let namespace: Namespace;
  let helper: NetnsHelper;
  before(async () => {
    namespace = await createNamespace();
    helper = namespace.helper();
  });
  after(() => namespace[Symbol.asyncDispose]());
  afterEach(() => namespace.run('nft', 'flush', 'ruleset'));

  for (const family of IP_FAMILIES) {
    const [vip, pods] =
      family === 'IPv4'
        ? ['10.96.0.10', ['10.244.0.1', '10.244.0.2']]
        : ['fd00:10:96::10', ['fd00:10:244::1', 'fd00:10:244::2']];
    for (const [title, script] of CASES) {
      it(`repairs ${title}, once there is a Service (${family})`, async () => {
        await helper.call('modeStart', AGENT, { family });
        await helper.call('modeApply', AGENT, true);
        const text = script.replaceAll('IP', nftFamily(family)).replaceAll('ADDRESS', vip);
        await helper.call('hold', text, 'nft', '-f', '-');
        await helper.call('modeUpdate', AGENT, [route({ family, clusterIP: vip }, pods)], []);
        await helper.call('modeApply', AGENT, true);
        assert.deepEqual((await helper.call('modeCompare', AGENT)).objects, []);
        assert.equal(await helper.call('modeApply', AGENT, true), 0);
        assert.deepEqual(await helper.call('modeWarnings', AGENT), []);
        await helper.call('modeStop', AGENT);
      });
    }
  }
});
