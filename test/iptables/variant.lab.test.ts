import assert from 'node:assert/strict';
import type { IpFamily } from '../../api/objects.ts';
import { createNamespace, type Namespace, type NetnsHelper } from '../netlink/namespace.ts';

const BUILT_IN = /^(PREROUTING|INPUT|FORWARD|OUTPUT|POSTROUTING)$/;
/** As long as a name may be. */
const LONGEST = 'KUBE-SVC-ABCDEFGHIJKLMNOPQRS';
const MANY = Array.from({ length: 3000 }, (_, index) => `KUBE-SEP-${index}`);

for (const variant of ['legacy', 'nft'] as const) {
  for (const family of ['IPv4', 'IPv6'] as const satisfies readonly IpFamily[]) {
    describe(`variant: chains of iptables-${variant}, ${family}`, () => {
      let namespace: Namespace;
      let helper: NetnsHelper;
      before(async () => {
        namespace = await createNamespace();
        helper = namespace.helper();
      });
      after(() => namespace[Symbol.asyncDispose]());

      const command = `${family === 'IPv4' ? 'iptables' : 'ip6tables'}-${variant}`;
      const seen = async () => {
        const tables = await helper.call('iptablesChainNames', family, variant);
        return Object.fromEntries(
          tables.map(([table, names]) => [
            table,
            names.filter((name) => !BUILT_IN.test(name)).sort(),
          ]),
        );
      };
      const restore = (lines: readonly string[]) =>
        namespace.run('sh', '-c', `printf '%s\\n' "$@" | ${command}-restore`, 'sh', ...lines);

      it('finds none in a new namespace, and creates no table', async () => {
        assert.deepEqual(await seen(), {});
        assert.deepEqual(await seen(), {});
      });

      it('finds the chains that iptables-restore made', async () => {
        const host = family === 'IPv4' ? '10.0.0.1' : 'fd00::1';
        const to = family === 'IPv4' ? '10.0.0.2:80' : '[fd00::2]:80';
        await restore([
          '*nat',
          `:${LONGEST} - [0:0]`,
          ':ERROR-1 - [0:0]',
          `-A PREROUTING -d ${host} -p tcp -m tcp --dport 80 -m comment --comment ERROR -j ${LONGEST}`,
          `-A ${LONGEST} -p tcp -j DNAT --to-destination ${to}`,
          'COMMIT',
          '*filter',
          ':DOCKER-USER - [0:0]',
          'COMMIT',
        ]);
        assert.deepEqual(await seen(), { filter: ['DOCKER-USER'], nat: ['ERROR-1', LONGEST] });
      });

      it('finds thousands', async () => {
        await restore([
          '*nat',
          ...MANY.map((name) => `:${name} - [0:0]`),
          ...MANY.map((name) => `-A PREROUTING -m mark --mark 1 -j ${name}`),
          'COMMIT',
        ]);
        assert.deepEqual((await seen()).nat, MANY.toSorted());
      });
    });
  }
}
