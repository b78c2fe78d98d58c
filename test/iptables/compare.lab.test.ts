import assert from 'node:assert/strict';
import { serviceChains } from '../../iptables/chains.ts';
import type { ComparedObject } from '../../proxier/compared-object.ts';
import { route } from '../fixtures.ts';
import { createNamespace, type Namespace, type NetnsHelper } from '../netlink/namespace.ts';

const WEB = route({ nodePort: 30_080 }, ['10.244.0.1', '10.244.0.2']);
const EMPTY = route({
  id: 'empty',
  serviceKey: 'default/empty',
  name: 'default/empty:http',
  clusterIP: '10.96.0.26',
});
const CHAINS = serviceChains('default/web', 'TCP');
const ENDPOINT = CHAINS.endpoint('10.244.0.2', 8080);
const DNAT = `-A ${ENDPOINT} -p tcp -j DNAT --to-destination 10.244.0.2:8080`;
const REJECT =
  '-A KUBE-SVC-VIP-A1 -d 10.96.0.26/32 -p tcp -m comment --comment "default/empty:http cluster IP" ' +
  '-m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable';
const JUMP = '-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES';

type Row = readonly (string | null)[];
const asRow = ({ state, type, in: where, desired, actual, service }: ComparedObject): Row => [
  state,
  type,
  where,
  desired,
  actual,
  service,
];

for (const variant of ['legacy', 'nft'] as const) {
  describe(`compare: mode iptables with the kernel (${variant})`, () => {
    let namespace: Namespace;
    let helper: NetnsHelper;
    before(async () => {
      namespace = await createNamespace();
      helper = namespace.helper();
      await helper.call('iptablesStart', variant, [WEB, EMPTY]);
    });
    after(() => namespace[Symbol.asyncDispose]());

    const iptables = (command: string) =>
      namespace.run(`iptables-${variant}`, ...command.split(' '));

    it('finds no difference after a sync', async () => {
      const all = await helper.call('iptablesCompare');
      assert.deepEqual(all?.objects, []);
      assert.ok(all.compared > 50);
      const one = await helper.call('iptablesCompare', 'default/web');
      assert.ok(one);
      assert.ok(
        one.objects.every(({ state, desired, actual }) => state === 'ok' && desired === actual),
      );
      const texts = one.objects.map(({ desired }) => desired);
      for (const chain of ['KUBE-SVC-VIP-A0', CHAINS.cluster, CHAINS.external, ENDPOINT]) {
        assert.ok(texts.includes(`:${chain} - [0:0]`), chain);
      }
      assert.ok(texts.includes(DNAT));
      assert.ok(texts.includes(JUMP), 'the way to its chains');
      assert.ok(texts.some((text) => text?.includes('--dport 30080') === true));
      assert.ok(!texts.some((text) => text?.includes('default/empty') === true));
    });

    const cases: readonly (readonly [title: string, change: string, Row[], string])[] = [
      [
        'a deleted rule',
        `-t nat -D ${ENDPOINT} -p tcp -j DNAT --to-destination 10.244.0.2:8080`,
        [['missing', 'rule', 'nat', DNAT, null, 'default/web']],
        'default/web',
      ],
      [
        'an inserted rule',
        `-t nat -I ${CHAINS.cluster} -s 192.0.2.1 -j RETURN`,
        [
          [
            'unexpected',
            'rule',
            'nat',
            null,
            `-A ${CHAINS.cluster} -s 192.0.2.1/32 -j RETURN`,
            'default/web',
          ],
        ],
        'default/web',
      ],
      [
        'a deleted rule of a dispatch tree',
        `-t filter -F KUBE-SVC-VIP-A1`,
        [['missing', 'rule', 'filter', REJECT, null, 'default/empty']],
        'default/empty',
      ],
      [
        'an unknown chain',
        '-t nat -N KUBE-SVC-AAAAAAAAAAAAAAAA',
        [['unexpected', 'chain', 'nat', null, ':KUBE-SVC-AAAAAAAAAAAAAAAA - [0:0]', null]],
        '',
      ],
      [
        'a deleted jump from a built-in chain',
        '-t nat -F OUTPUT',
        [['missing', 'rule', 'nat', JUMP, null, null]],
        'default/web',
      ],
    ];
    for (const [title, change, expected, service] of cases) {
      it(`finds ${title}`, async () => {
        await helper.call('iptablesStart', variant, [WEB, EMPTY]);
        await iptables(change);
        const all = await helper.call('iptablesCompare');
        assert.deepEqual(all?.objects.map(asRow), expected);
        for (const key of ['default/web', 'default/empty']) {
          const one = await helper.call('iptablesCompare', key);
          const wrong = one?.objects.filter(({ state }) => state !== 'ok').map(asRow);
          const isConcerned = key === service;
          assert.deepEqual(wrong, isConcerned ? expected : [], key);
        }
      });
    }
  });
}
