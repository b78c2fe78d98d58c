/** Compares the kernel with the applied state in IPVS mode. The backend runs in this process. */
import assert from 'node:assert/strict';
import { execa } from 'execa';
import { iptablesCommands } from '../../../iptables/commands.ts';
import { ipvsBackend } from '../../../ipvs/backend.ts';
import { IpvsKernel } from '../../../ipvs/kernel.ts';
import type { Backend } from '../../../proxier/backend.ts';
import type { ComparedObject } from '../../../proxier/compared-object.ts';
import { systemTimers } from '../../../sync/timers.ts';
import { route } from '../../fixtures.ts';

const VIP = '10.96.0.10';
const WIDE_VIP = '10.96.0.11';
const [A, B] = ['10.244.1.11', '10.244.1.12'] as const;
const WEB = route(
  { loadBalancerIPs: ['203.0.113.1'], sourceRanges: ['192.0.2.0/24'], affinitySeconds: 600 },
  [A, B],
);
const WIDE = route(
  {
    id: 'wide',
    serviceKey: 'default/wide',
    name: 'default/wide',
    clusterIP: WIDE_VIP,
    match: { kind: 'ranges', ranges: [{ protocol: 'UDP', from: 5000, to: 5002 }] },
  },
  [A],
);

describe('comparison with the kernel in IPVS mode', () => {
  let kernel: IpvsKernel;
  let backend: Backend;

  before(async () => {
    kernel = await IpvsKernel.open('IPv4');
    const options = {
      family: 'IPv4',
      masqueradeAll: false,
      masqueradeBit: 14,
      localDetector: undefined,
      nodePortSelection: ['all'],
      scheduler: 'rr',
      excludeCidrs: [],
      markRange: { first: 0x1000, last: 0x3fff },
      allPorts: 'fwmark',
      randomFully: true,
      onWarning: () => {},
    } as const;
    const commands = iptablesCommands('IPv4', 'legacy');
    backend = await ipvsBackend(kernel, commands, options, systemTimers);
    backend.update([WEB, WIDE], []);
  });
  after(async () => {
    backend.update([], [WEB.id, WIDE.id]);
    await backend.apply(true);
    await backend.close();
    for (const table of ['mangle', 'nat', 'filter']) {
      await execa('iptables-legacy-restore', ['-T', table], { input: `*${table}\nCOMMIT\n` });
    }
    await execa('ipset', ['destroy']);
    await execa('ip', ['link', 'del', 'kube-ipvs0'], { reject: false });
  });

  const objectsOf = async (service?: string) => (await backend.compare?.(service))?.objects ?? [];
  const differences = async (service?: string) =>
    (await objectsOf(service)).filter(({ state }) => state !== 'ok');

  it('finds no difference after a sync, and shows objects as the tools do', async () => {
    await backend.apply(true);
    assert.deepEqual(await objectsOf(), []);
    const [services, sets, addresses] = await Promise.all([
      execa('ipvsadm', ['-Sn']),
      execa('ipset', ['save']),
      execa('ip', ['-4', '-o', 'address', 'show', 'dev', 'kube-ipvs0']),
    ]);
    const lines = [...services.stdout.split('\n'), ...sets.stdout.split('\n')].map((line) =>
      line.trim(),
    );
    for (const service of ['default/web', 'default/wide']) {
      for (const { type, desired, actual, state } of await objectsOf(service)) {
        assert.deepEqual([state, actual], ['ok', desired]);
        if (desired === null) continue;
        if (type === 'address') assert.ok(addresses.stdout.includes(desired.split(' ')[0] ?? '-'));
        // The kernel has an entry for each port of a range.
        else if (!desired.includes('5000-5002')) {
          assert.ok(lines.includes(desired), `${desired}\n${lines.join('\n')}`);
        }
      }
    }
  });

  type Row = readonly (string | null)[];
  const asRow = ({ state, type, desired, actual, service }: ComparedObject): Row => [
    state,
    type,
    desired,
    actual,
    service,
  ];
  const destination = (pod: string, weight: number) =>
    `-a -t ${VIP}:80 -r ${pod}:8080 -m -w ${weight}`;
  const cases: readonly (readonly [title: string, command: string, Row])[] = [
    [
      'a destination with another weight',
      `ipvsadm -e -t ${VIP}:80 -r ${A}:8080 -m -w 5`,
      ['changed', 'IPVS destination', destination(A, 1), destination(A, 5), 'default/web'],
    ],
    [
      'a deleted destination',
      `ipvsadm -d -t ${VIP}:80 -r ${B}:8080`,
      ['missing', 'IPVS destination', destination(B, 1), null, 'default/web'],
    ],
    [
      'an unknown destination',
      `ipvsadm -a -t ${VIP}:80 -r 10.244.9.9:8080 -m -w 3`,
      ['unexpected', 'IPVS destination', null, destination('10.244.9.9', 3), 'default/web'],
    ],
    [
      'a service with another scheduler',
      `ipvsadm -E -t ${VIP}:80 -s wrr -p 600`,
      [
        'changed',
        'IPVS service',
        `-A -t ${VIP}:80 -s rr -p 600`,
        `-A -t ${VIP}:80 -s wrr -p 600`,
        'default/web',
      ],
    ],
    [
      'a deleted set entry',
      `ipset del KUBE-CLUSTER-IP ${VIP},tcp:80`,
      ['missing', 'ipset entry', `add KUBE-CLUSTER-IP ${VIP},tcp:80`, null, 'default/web'],
    ],
    [
      'an unknown set entry',
      'ipset add KUBE-LOAD-BALANCER-SOURCE-CIDR 203.0.113.1,tcp:80,198.51.100.0/24',
      [
        'unexpected',
        'ipset entry',
        null,
        'add KUBE-LOAD-BALANCER-SOURCE-CIDR 203.0.113.1,tcp:80,198.51.100.0/24',
        'default/web',
      ],
    ],
    [
      'a VIP that is not bound',
      `ip address del ${WIDE_VIP}/32 dev kube-ipvs0`,
      ['missing', 'address', `${WIDE_VIP}/32 dev kube-ipvs0 scope host`, null, 'default/wide'],
    ],
    [
      'a deleted rule',
      'iptables-legacy -t nat -F KUBE-MARK-MASQ',
      ['missing', 'rule', '-A KUBE-MARK-MASQ -j CONNMARK --set-xmark 0x4000/0x4000', null, null],
    ],
  ];
  for (const [title, command, row] of cases) {
    it(`finds ${title}, until a full sync repairs it`, async () => {
      const [program = '', ...args] = command.split(' ');
      await execa(program, args);
      assert.deepEqual((await differences()).map(asRow), [row]);
      for (const service of ['default/web', 'default/wide']) {
        const expected = row.at(-1) === service ? [row] : [];
        assert.deepEqual((await differences(service)).map(asRow), expected, service);
      }
      await backend.apply(true);
      assert.deepEqual(await differences(), []);
    });
  }
});
