import assert from 'node:assert/strict';
import fc from 'fast-check';
import { familyOf } from '../../../api/addresses.ts';
import {
  type Access,
  accessOf,
  PoliciesChangeError,
  type PortDecision,
} from '../../../policy/model/access.ts';
import { explain } from '../../../policy/model/explain.ts';
import { PolicyModel } from '../../../policy/model/model.ts';
import { addressNumber, rangesContain } from '../../../policy/model/ranges.ts';
import type { Direction } from '../../../policy/model/terms.ts';
import { cluster, FLOWS } from '../generated.ts';
import {
  adminPolicy,
  group,
  HERE,
  labelled,
  network,
  networkPolicy,
  node,
  peerPods,
  pod,
  rule,
  type TestObject,
  THERE,
  tcp,
} from '../objects.ts';
import type { Flow } from '../oracle.ts';

const WEB = pod('web', {
  addresses: ['10.0.0.1', 'fd00::1'],
  namedPorts: [{ name: 'http', protocol: 'TCP', port: 8080 }],
});
const DB = pod('db', { addresses: ['10.0.0.2'], nodeName: THERE });
const OTHER = pod('other', { addresses: ['10.0.0.3'], nodeName: THERE });
const ONLY_WEB = { namespaces: 'default', pods: labelled({ app: 'web' }) };

function modelOf(objects: Iterable<TestObject>): PolicyModel {
  const model = new PolicyModel({ nodeName: HERE });
  for (const object of objects) model.upsert(object);
  return model;
}

/** One line for each group: its peers, then its decisions. */
async function linesOf(objects: readonly TestObject[], direction: Direction): Promise<string[]> {
  const access = await accessOf(modelOf([WEB, DB, OTHER, ...objects]), WEB.key, direction);
  return access.map(({ peers, decisions }) => {
    const decided = decisions.map(
      ({ verdict, ports, rule: path, passedBy }) =>
        `${portText(ports)} ${verdict} by ${path}${passedBy === undefined ? '' : ' after a pass'}`,
    );
    return `${peerText(peers)}: ${decided.join(', ')}`;
  });
}

function portText(ports: PortDecision['ports']): string {
  return ports.map(({ protocol, from, to }) => `${protocol}/${from}-${to}`).join(' ');
}

function peerText(peers: Access['peers']): string {
  switch (peers.kind) {
    case 'pods':
      return peers.pods.map(({ name }) => name).join(' ');
    case 'addresses':
      return `${peers.ranges.length} ranges`;
    case 'nodes':
      return peers.addresses.join(' ');
    case 'domainName':
      return peers.pattern;
    case 'ownNode':
      return 'own node';
  }
}

const ALL = 'TCP/0-65535 UDP/0-65535 SCTP/0-65535 other/0-0';
const OWN_NODE = `own node: ${ALL} allow by undefined`;

describe('access: who may reach a pod', () => {
  it('allows everything to a pod without policies', async () => {
    assert.deepEqual(await linesOf([], 'ingress'), [
      `db other: ${ALL} allow by undefined`,
      `2 ranges: ${ALL} allow by undefined`,
      OWN_NODE,
    ]);
  });

  it('groups peers by the rules that match them, and divides the ports', async () => {
    const policy = networkPolicy('web', {
      subject: ONLY_WEB,
      ingress: [
        rule({
          peers: [peerPods(labelled({ app: 'db' }))],
          ports: [{ protocol: 'TCP', name: 'http' }],
        }),
        rule({ peers: [network('192.0.2.0/24', '192.0.2.128/25')], ports: [tcp(1, 9)] }),
      ],
    });
    const rest = 'TCP/0-0 TCP/10-65535 UDP/0-65535 SCTP/0-65535 other/0-0';
    assert.deepEqual(await linesOf([policy], 'ingress'), [
      'db: TCP/8080-8080 allow by spec.ingress[0], ' +
        'TCP/0-8079 TCP/8081-65535 UDP/0-65535 SCTP/0-65535 other/0-0 deny by undefined',
      `other: ${ALL} deny by undefined`,
      `1 ranges: TCP/1-9 allow by spec.ingress[1], ${rest} deny by undefined`,
      `3 ranges: ${ALL} deny by undefined`,
      OWN_NODE,
    ]);
  });

  it('says which ports an Admin rule passes to the next tier', async () => {
    const lines = await linesOf(
      [
        adminPolicy('first', {
          ingress: [rule({ action: 'Pass', ports: [tcp(80)] }), rule({ action: 'Deny' })],
        }),
        networkPolicy('web', { subject: ONLY_WEB, ingress: [rule({ ports: [tcp(80)] })] }),
      ],
      'ingress',
    );
    const rest = 'TCP/0-79 TCP/81-65535 UDP/0-65535 SCTP/0-65535 other/0-0 deny by spec.ingress[1]';
    assert.equal(lines[0], `db other: ${rest}, TCP/80-80 allow by spec.ingress[0] after a pass`);
  });

  it('has domain names, and nodes if a rule selects nodes', async () => {
    const egress = [
      rule({ peers: [{ kind: 'nodes', selector: labelled({ role: 'edge' }) }] }),
      rule({ peers: [{ kind: 'domainName', pattern: '*.example.com' }] }),
      rule({ action: 'Deny' }),
    ];
    const lines = await linesOf(
      [
        adminPolicy('egress', { egress }),
        node('edge', ['192.168.0.5'], { role: 'edge' }),
        node('plain', ['192.168.0.6']),
      ],
      'egress',
    );
    assert.deepEqual(lines, [
      `db other: ${ALL} deny by spec.egress[2]`,
      `192.168.0.5: ${ALL} allow by spec.egress[0]`,
      `192.168.0.6: ${ALL} deny by spec.egress[2]`,
      `2 ranges: ${ALL} deny by spec.egress[2]`,
      `*.example.com: ${ALL} allow by spec.egress[1]`,
    ]);
  });

  /** A slice of a whole answer, and one of a step. */
  const [whole, short] = [
    { isOver: () => false, yield: async () => {} },
    { isOver: () => true, yield: async () => {} },
  ];

  it('is the same in slices and in one go', async () => {
    await fc.assert(
      fc.asyncProperty(cluster, async (objects) => {
        const model = modelOf(objects);
        for (const { key } of [...model.subjects()]) {
          for (const direction of ['ingress', 'egress'] as const) {
            assert.deepEqual(
              await accessOf(model, key, direction, { slice: short }),
              await accessOf(model, key, direction, { slice: whole }),
            );
          }
        }
      }),
      { seed: 16, numRuns: 60 },
    );
  });

  const PEERS = rule({ peers: [peerPods(labelled({ app: 'db' }))] });
  const EDGES = rule({ peers: [{ kind: 'nodes', selector: labelled({ role: 'edge' }) }] });
  const CHANGES: Readonly<Record<string, (model: PolicyModel) => void>> = {
    policy: (model) =>
      model.upsert(
        adminPolicy('first', { ingress: [rule({ action: 'Deny', peers: PEERS.peers }), EDGES] }),
      ),
    node: (model) => model.upsert(node('edge', ['192.168.0.5'], {})),
    'policy of the pod': (model) => model.upsert({ ...WEB, labels: { app: 'no' } }),
  };
  for (const [what, change] of Object.entries(CHANGES)) {
    it(`is of one state although a ${what} changes between any two slices`, async () => {
      const objects = [
        ...[WEB, DB, OTHER, node('edge', ['192.168.0.5'], { role: 'edge' })],
        adminPolicy('first', { ingress: [PEERS, EDGES] }),
        networkPolicy('web', { subject: ONLY_WEB, ingress: [PEERS] }),
      ];
      const changed = modelOf(objects);
      change(changed);
      const states = await Promise.all(
        [modelOf(objects), changed].map((model) =>
          accessOf(model, WEB.key, 'ingress', { slice: whole }),
        ),
      );
      const text = (access: readonly Access[] | undefined) =>
        JSON.stringify(access, (_, value) => (typeof value === 'bigint' ? `${value}` : value));
      assert.notEqual(text(states[0]), text(states[1]));
      for (let at = 1, isOver = false; !isOver; at += 1) {
        const model = modelOf(objects);
        let count = 0;
        const slice = {
          isOver: () => true,
          yield: async () => {
            count += 1;
            if (count === at) change(model);
          },
        };
        const access = await accessOf(model, WEB.key, 'ingress', { slice });
        isOver = count < at;
        assert.ok(states.map(text).includes(text(access)), `slice ${at}: ${text(access)}`);
      }
    });
  }

  /** Calls back after each step. */
  const afterEachStep = (callback: () => void) => ({
    slice: { isOver: () => true, yield: async () => callback() },
  });

  it('gives up while policies of the pod change without end', async () => {
    const model = modelOf([WEB, DB, OTHER]);
    let port = 1;
    const change = () => {
      port += 1;
      model.upsert(adminPolicy('first', { ingress: [rule({ ports: [tcp(port)] })] }));
    };
    await assert.rejects(
      accessOf(model, WEB.key, 'ingress', afterEachStep(change)),
      PoliciesChangeError,
    );
  });

  it('goes on while others change: policies of other namespaces, and objects that come again unchanged', async () => {
    const own = networkPolicy('web', { subject: ONLY_WEB, ingress: [PEERS] });
    const CIDRS = rule({ peers: [{ kind: 'cidrGroups', selector: labelled({ role: 'cidrs' }) }] });
    const cidrs = group('cidrs', { role: 'cidrs' }, ['192.0.2.0/24']);
    const edge = node('edge', ['192.168.0.5'], { role: 'edge' });
    const all = adminPolicy('first', { ingress: [PEERS, EDGES, CIDRS] });
    const objects = [WEB, DB, OTHER, own, cidrs, edge, all];
    const model = modelOf(objects);
    let port = 1;
    const change = () => {
      port += 1;
      const subject = { namespaces: 'other', pods: [] };
      const ingress = [rule({ peers: PEERS.peers, ports: [tcp(port)] })];
      model.upsert(networkPolicy('other', { namespace: 'other', subject, ingress }));
      for (const object of structuredClone(objects)) model.upsert(object);
    };
    assert.deepEqual(
      await accessOf(model, WEB.key, 'ingress', afterEachStep(change)),
      await accessOf(modelOf(objects), WEB.key, 'ingress', { slice: whole }),
    );
  });

  it('has the rules of a pod that is created again with the same policies meanwhile', async () => {
    const objects = [
      ...[WEB, OTHER, DB],
      networkPolicy('web', { subject: ONLY_WEB, ingress: [PEERS] }),
    ];
    const model = modelOf(objects);
    let count = 0;
    const recreate = () => {
      count += 1;
      // Before the peers of the policy.
      if (count !== 1) return;
      model.remove('Pod', WEB.key);
      model.takeChanges();
      model.upsert({ ...WEB });
    };
    assert.deepEqual(
      (await accessOf(model, WEB.key, 'ingress', afterEachStep(recreate))).map(({ decisions }) =>
        decisions.map(({ verdict }) => verdict),
      ),
      (await accessOf(modelOf(objects), WEB.key, 'ingress', { slice: whole })).map(
        ({ decisions }) => decisions.map(({ verdict }) => verdict),
      ),
    );
  });

  it('stops when its answer is no longer wanted', async () => {
    const gone = new AbortController();
    let steps = 0;
    const { slice } = afterEachStep(() => {
      steps += 1;
      gone.abort();
    });
    await assert.rejects(
      accessOf(modelOf([WEB, DB, OTHER]), WEB.key, 'ingress', { slice, signal: gone.signal }),
      { name: 'AbortError' },
    );
    assert.equal(steps, 1);
  });

  it('knows the named ports of a pod that has no address yet', async () => {
    const pending = { ...WEB, addresses: [] };
    const ingress = [rule({ peers: PEERS.peers, ports: [{ name: 'http', protocol: 'TCP' }] })];
    const policy = networkPolicy('web', { subject: ONLY_WEB, ingress });
    const [first] = await accessOf(modelOf([pending, DB, policy]), WEB.key, 'ingress');
    assert.deepEqual(first?.decisions[0]?.ports, [{ protocol: 'TCP', from: 8080, to: 8080 }]);
  });

  it('has each peer once although a pod is created again meanwhile', async () => {
    const model = modelOf([WEB, DB, OTHER]);
    const recreate = () => {
      model.remove('Pod', DB.key);
      model.upsert(DB);
    };
    const access = await accessOf(model, WEB.key, 'ingress', afterEachStep(recreate));
    assert.equal(access[0] && peerText(access[0].peers).split(' ').sort().join(), 'db,other');
  });

  it('is empty for a pod that is gone', async () => {
    assert.deepEqual(await accessOf(modelOf([DB]), WEB.key, 'ingress'), []);
  });

  it('agrees with the explanation of each connection', async () => {
    await fc.assert(
      fc.asyncProperty(cluster, async (objects) => {
        const model = modelOf(objects);
        for (const subject of [...model.subjects()]) {
          const owned = subject.addresses.filter((each) => model.podAt(each) === subject);
          for (const direction of ['ingress', 'egress'] as const) {
            const access = await accessOf(model, subject.key, direction);
            const end = direction === 'ingress' ? 'to' : 'from';
            for (const flow of FLOWS.filter((each) => owned.includes(each[end]))) {
              if (flow.protocol !== 'ICMP' && !owned.includes(flow[end === 'to' ? 'from' : 'to']))
                assertAgrees(model, access, direction, flow);
            }
          }
        }
      }),
      { seed: 16, numRuns: 60 },
    );
  });
});

function assertAgrees(
  model: PolicyModel,
  access: readonly Access[],
  direction: Direction,
  { from, to, port, protocol }: Flow,
): void {
  if (protocol === 'ICMP') return;
  const isFqdnAddress = () => false;
  const query = { from: { address: from }, to: { address: to }, port, protocol, isFqdnAddress };
  const [explained] = explain(model, query);
  const peer = direction === 'ingress' ? from : to;
  const groups = access.filter((each) =>
    hasPeer(model, each, peer, direction === 'ingress' ? to : from),
  );
  const kinds = groups.map(({ peers }) => peers.kind);
  // An address of a node is in a group of addresses, too.
  const group = ['ownNode', 'pods', 'nodes', 'addresses']
    .map((kind) => groups[kinds.indexOf(kind as Access['peers']['kind'])])
    .find((each) => each !== undefined);
  const decisions = group?.decisions.filter(({ ports }) =>
    ports.some((each) => each.protocol === protocol && each.from <= port && port <= each.to),
  );
  const text = `${direction} ${from} ${to} ${protocol} ${port}`;
  assert.equal(decisions?.length, 1, text);
  const expected = explained?.[direction];
  assert.deepEqual(
    [decisions?.[0]?.verdict, decisions?.[0]?.rule, decisions?.[0]?.policies],
    [expected?.verdict, expected?.rule, expected?.policies],
    text,
  );
}

function hasPeer(model: PolicyModel, { peers }: Access, peer: string, subject: string): boolean {
  const pod = model.podAt(subject);
  switch (peers.kind) {
    case 'ownNode':
      return pod !== undefined && model.isNodeOf(pod, peer);
    case 'pods':
      return (
        (peers.family ?? familyOf(peer)) === familyOf(peer) &&
        peers.pods.some((each) => model.podAt(peer) === each)
      );
    case 'nodes':
      return peers.addresses.includes(peer);
    case 'addresses': {
      const ranges = peers.ranges.filter(({ family }) => family === familyOf(peer));
      return model.podAt(peer) === undefined && rangesContain(ranges, addressNumber(peer));
    }
    case 'domainName':
      return false;
  }
}
