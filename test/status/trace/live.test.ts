import assert from 'node:assert/strict';
import type { TracedHeaders, TraceEvent } from '../../../netlink/nftables/trace.ts';
import type { ComputedTrace, LivePath, LiveTraceStep } from '../../../status/api/trace.ts';
import { liveLineText, traceAnswerText } from '../../../status/print/trace.ts';
import { differences } from '../../../status/trace/differences.ts';
import type { ForeignEffect } from '../../../status/trace/foreign-steps.ts';
import { TracedPackets } from '../../../status/trace/live-paths.ts';
import type { RuleAction } from '../../../status/trace/rule-names.ts';

const headers = (fields: Partial<TracedHeaders> = {}): TracedHeaders => ({
  source: '192.0.2.50',
  destination: '10.96.0.10',
  protocol: 6,
  sourcePort: 40_000,
  destinationPort: 80,
  ...fields,
});
const TRANSLATED = headers({ destination: '10.244.0.1', destinationPort: 8080 });

const event = (fields: Partial<TraceEvent>): TraceEvent => ({
  id: 1,
  family: 2,
  table: 'portwide-trace',
  chain: 'select-prerouting',
  type: 'rule',
  handle: 9,
  verdict: { kind: 'continue' },
  policy: undefined,
  inInterface: 2,
  outInterface: undefined,
  mark: 0,
  headers: undefined,
  ...fields,
});

const step = (fields: Partial<LiveTraceStep> = {}): LiveTraceStep => ({
  event: 'step',
  packet: 1,
  owner: 'other',
  table: 'ip filter',
  chain: 'FORWARD',
  rule: 3,
  handle: 12,
  purpose: null,
  text: 'tcp dport 8080 drop',
  verdict: 'drop',
  source: null,
  destination: null,
  inInterface: null,
  outInterface: null,
  ...fields,
});

/** Feeds events of packets to `TracedPackets`. */
function follow(...events: readonly (Partial<TraceEvent> & { action?: RuleAction })[]) {
  const packets = new TracedPackets();
  for (const { action, ...fields } of events) {
    const each = event(fields);
    const packet = packets.packetOf(each);
    if (packet === undefined) continue;
    const named = {
      owner: 'other',
      table: '',
      rule: 1,
      purpose: null,
      text: null,
      action,
    } as const;
    packets.record(each, step({ packet, chain: each.chain }), named);
  }
  return packets.paths();
}

const passed = (hook: string, fields: Partial<TraceEvent> = {}) => ({
  chain: `passed-${hook}`,
  type: 'policy' as const,
  handle: undefined,
  headers: TRANSLATED,
  ...fields,
});

describe('live-paths: traced packets', () => {
  it('a packet that is translated, masqueraded and forwarded', () => {
    const [path] = follow(
      { headers: headers() },
      { table: 'nat', chain: 'KUBE-SEP-A', action: 'translate', verdict: { kind: 'accept' } },
      passed('prerouting'),
      passed('forward'),
      { table: 'nat', chain: 'KUBE-POSTROUTING', action: 'masquerade' },
      passed('postrouting', { headers: { ...TRANSLATED, source: '192.0.2.7' } }),
    );
    assert.deepEqual(
      [path?.result, path?.translatedTo, path?.masqueradedAs, path?.passed],
      ['left', '10.244.0.1:8080', '192.0.2.7', ['prerouting', 'forward', 'postrouting']],
    );
    assert.equal(path?.translatedBy?.chain, 'KUBE-SEP-A');
    assert.equal(path?.masqueradedBy?.chain, 'KUBE-POSTROUTING');
  });

  it('dropped, rejected, dropped by a policy, lost, delivered', () => {
    const ends = [
      { table: 'x', chain: 'c', verdict: { kind: 'drop' } },
      { table: 'x', chain: 'c', verdict: { kind: 'drop' }, action: 'reject' },
      { table: 'x', chain: 'c', type: 'policy', policy: { kind: 'drop' }, verdict: undefined },
      passed('prerouting'),
      passed('input'),
    ] as const;
    assert.deepEqual(
      ends.map((end) => follow({ headers: headers() }, end)[0]?.result),
      ['dropped', 'rejected', 'dropped', 'lost', 'delivered'],
    );
  });

  it('lost in IPVS: reached its hook, and was neither accepted nor sent on', () => {
    const beforeIpvs = (hook: string, fields: Partial<TraceEvent> = {}) =>
      passed('', { chain: `before-ipvs-${hook}`, headers: headers(), ...fields });
    const sent = { chain: 'select-output', headers: headers(), inInterface: undefined };
    const arrived = passed('prerouting', { headers: headers() });
    const cases = [
      [true, { headers: headers() }, arrived, beforeIpvs('input')],
      [true, sent, beforeIpvs('output')],
      // Never reached IPVS.
      [false, { headers: headers() }, arrived],
      [false, sent],
      // Lost after IPVS sent it to an endpoint.
      [
        false,
        { headers: headers() },
        arrived,
        beforeIpvs('input'),
        beforeIpvs('output', { headers: TRANSLATED }),
      ],
      [false, sent, beforeIpvs('output'), beforeIpvs('output', { headers: TRANSLATED })],
      // Accepted, or dropped by a rule.
      [false, { headers: headers() }, beforeIpvs('input'), passed('input', { headers: headers() })],
      [
        false,
        { headers: headers() },
        beforeIpvs('input'),
        { table: 'x', chain: 'c', verdict: { kind: 'drop' } },
      ],
      [false, sent, beforeIpvs('output'), passed('output', { headers: headers() })],
    ] as const;
    for (const [index, [isLost, ...events]] of cases.entries()) {
      const [path] = follow(...events);
      assert.deepEqual([path?.lostInIpvs, follow(...events).length], [isLost, 1], `case ${index}`);
    }
  });

  it('packets of others are counted, not followed, also if the kernel uses their id again', () => {
    const packets = new TracedPackets((source) => source === '10.244.0.9');
    const other = { ...headers(), source: '10.244.0.9' };
    const numbers = [headers(), other, undefined, headers({ sourcePort: 1 })].map((each, index) =>
      packets.packetOf(
        event(index === 2 ? { table: 'x', chain: 'c', handle: 1 } : { headers: each }),
      ),
    );
    assert.deepEqual([numbers, packets.others], [[1, undefined, undefined, 2], 1]);
  });

  it('a packet that leaves to a pod of this node', () => {
    const packets = new TracedPackets();
    const fields = [{ headers: headers() }, passed('postrouting')];
    for (const each of fields.map(event)) {
      const packet = packets.packetOf(each) ?? 0;
      packets.record(each, step({ packet }), {
        ...{ owner: 'other', table: '', rule: 1, purpose: null, text: null, action: undefined },
      });
    }
    const results = [true, false].map((isPod) => packets.paths(() => isPod)[0]?.result);
    assert.deepEqual(results, ['pod', 'left']);
  });

  it('the kernel uses an id again: another packet; an unknown id: a packet of another program', () => {
    const paths = follow(
      { headers: headers() },
      { headers: headers({ sourcePort: 40_001 }) },
      passed('input'),
      { id: 7, table: 'x', chain: 'c', verdict: { kind: 'drop' } },
    );
    assert.deepEqual(
      paths.map(({ source, result }) => [source, result]),
      [
        ['192.0.2.50:40000', 'lost'],
        ['192.0.2.50:40001', 'delivered'],
      ],
    );
  });

  it('a packet of the node to itself is one packet, although it is selected twice', () => {
    const paths = follow(
      { chain: 'select-output', headers: headers(), inInterface: undefined },
      passed('output', { headers: headers() }),
      passed('postrouting', { headers: headers() }),
      { id: 2, headers: headers(), inInterface: 1 },
      passed('prerouting', { id: 2, headers: headers() }),
      passed('input', { id: 2, headers: headers() }),
    );
    assert.deepEqual(
      paths.map(({ result }) => result),
      ['delivered'],
    );
  });
});

const COMPUTED: ComputedTrace = {
  family: 'IPv4',
  source: '192.0.2.50',
  destination: '10.96.0.10',
  steps: [
    {
      step: 'service',
      title: 'Service',
      decision: 'it is a cluster IP',
      object: 'Service default/web',
      detail: ['no endpoint is ready'],
    },
  ],
  verdict: 'translated',
  unserved: false,
  endpoints: [
    {
      address: '10.244.0.1',
      port: 8080,
      local: true,
      masqueraded: true,
      policy: 'allow',
      foreignRules: null,
    },
    {
      address: '10.244.0.2',
      port: 8080,
      local: true,
      masqueraded: false,
      policy: 'deny',
      foreignRules: null,
    },
  ],
  speaksAs: [],
  uncertain: ['it depends'],
};
const PATH: LivePath = {
  packet: 1,
  source: '192.0.2.50:40000',
  destination: '10.96.0.10:80',
  result: 'left',
  passed: ['prerouting', 'forward', 'postrouting'],
  translatedTo: '10.244.0.1:8080',
  masqueradedAs: '192.0.2.7',
  decidedBy: null,
  translatedBy: step({ owner: 'portwide', verdict: 'accept' }),
  masqueradedBy: null,
  lostInIpvs: false,
};
const RULE = 'rule 3 of chain FORWARD in table ip filter (handle 12: tcp dport 8080 drop)';

describe('differences: between computed and live', () => {
  const of = (path: Partial<LivePath>, computed: Partial<ComputedTrace> = {}) =>
    differences([{ ...PATH, ...path }], () => ({
      path: { ...COMPUTED, ...computed },
      effects: [],
    }));

  it('none if the kernel does what is computed', () => {
    assert.deepEqual(of({}), []);
    const own = step({ owner: 'portwide' });
    assert.deepEqual(of({ result: 'rejected', decidedBy: own }, { verdict: 'rejected' }), []);
    const policy = step({ owner: 'network policy' });
    const denied = { result: 'dropped', decidedBy: policy } as const;
    assert.deepEqual(of(denied, { verdict: 'denied' }), []);
    assert.deepEqual(of({ ...denied, translatedTo: '10.244.0.2:8080' }), []);
  });

  it('a rule of another program is named, even if the packet should be dropped as well', () => {
    assert.deepEqual(of({ result: 'dropped', decidedBy: step() }, { verdict: 'dropped' }), [
      `packet 1 was dropped by ${RULE}, which another program wrote; computed: it should be dropped`,
    ]);
  });

  it('none if a rule of another program drops the packet as computed, and otherwise both are named', () => {
    const effect = (fields: Partial<ForeignEffect> = {}): ForeignEffect => ({
      verdict: 'drop',
      table: 'ip filter',
      chains: new Set(['FORWARD']),
      targets: new Set(['10.244.0.1:8080']),
      isCertain: true,
      text: 'dropped by table X',
      ...fields,
    });
    const seen = (
      path: Partial<LivePath>,
      effects: readonly ForeignEffect[],
      computed = COMPUTED,
    ) => differences([{ ...PATH, ...path }], () => ({ path: computed, effects }));
    const dropped = { result: 'dropped', decidedBy: step() } as const;
    const all = { ...COMPUTED, verdict: 'dropped' } as const;
    assert.deepEqual(seen(dropped, [effect()], all), []);
    assert.deepEqual(seen({ ...dropped, result: 'rejected' }, [effect()], all), []);
    assert.deepEqual(seen({ ...dropped, translatedTo: null }, [effect()], all), []);
    // Of one of several endpoints, and of a rule that depends on a set.
    assert.deepEqual(seen(dropped, [effect()]), []);
    assert.deepEqual(seen(dropped, [effect({ isCertain: false })]), []);
    const was = `packet 1 was dropped by ${RULE}, which another program wrote; computed: it should`;
    for (const other of [{ table: 'ip mangle' }, { chains: new Set(['guard']) }])
      assert.deepEqual(seen(dropped, [effect(other)], all), [`${was} be dropped by table X`]);
    const elsewhere = effect({ targets: new Set(['10.244.0.9:80']) });
    assert.deepEqual(seen(dropped, [elsewhere]), [`${was} reach an endpoint`]);
    assert.deepEqual(seen({}, [elsewhere]), []);
    assert.deepEqual(seen({}, [effect()]), [
      'packet 1 got through to 10.244.0.1:8080; computed: it should be dropped by table X',
    ]);
    const own = step({ owner: 'portwide', text: null });
    assert.equal(seen({ ...dropped, decidedBy: own }, [effect()], all).length, 1);
    const masquerade = effect({ verdict: 'masquerade', targets: new Set(['10.244.0.2:8080']) });
    const open = COMPUTED.endpoints.map((each) => ({ ...each, policy: null }));
    const kept = { translatedTo: '10.244.0.2:8080', masqueradedBy: step() };
    assert.equal(seen(kept, [], { ...COMPUTED, endpoints: open }).length, 1);
    assert.deepEqual(seen(kept, [masquerade], { ...COMPUTED, endpoints: open }), []);
  });

  it('another endpoint, another source address, another verdict', () => {
    const cases: [Partial<LivePath>, Partial<ComputedTrace>, string][] = [
      [
        { translatedTo: '10.9.9.9:80', translatedBy: null },
        {},
        'was translated to 10.9.9.9:80 by conntrack, as an entry of an earlier packet says; computed: that is no endpoint for this client',
      ],
      [{ translatedTo: null }, {}, 'was not translated; computed: it should reach an endpoint'],
      [{ masqueradedAs: null }, {}, 'kept its source address; computed: it should be masqueraded'],
      [
        { translatedTo: '10.244.0.2:8080' },
        {},
        'got through to 10.244.0.2:8080; computed: network policies deny it',
      ],
      [
        {},
        { verdict: 'dropped' },
        'got through to 10.244.0.1:8080; computed: it should be dropped',
      ],
      [
        { result: 'dropped', decidedBy: step({ owner: 'portwide', text: null }) },
        {},
        'was dropped by rule 3 of chain FORWARD in table ip filter (handle 12); computed: it should reach an endpoint',
      ],
      [
        { result: 'lost', passed: ['prerouting'] },
        {},
        'was lost after hook prerouting (translated to 10.244.0.1:8080), and no nf_tables rule dropped it: check the route, ip_forward and rp_filter; computed: it should reach an endpoint',
      ],
      [
        { translatedBy: step({ verdict: 'accept' }) },
        { verdict: 'untouched' },
        `was translated to 10.244.0.1:8080 by ${RULE}, which another program wrote; computed: no Service has the destination`,
      ],
    ];
    for (const [path, computed, sentence] of cases) {
      assert.deepEqual(of(path, computed), [`packet 1 ${sentence}`]);
    }
  });

  it('IPVS rejects packets to a Service without endpoints by no rule', () => {
    const lost = { result: 'lost', passed: ['prerouting'], translatedTo: null } as const;
    const rejected = { verdict: 'rejected' } as const;
    assert.deepEqual(of({ ...lost, lostInIpvs: true }, rejected), []);
    assert.deepEqual(of({ ...lost, lostInIpvs: true }), [
      'packet 1 was lost in IPVS, which has no endpoint for it or cannot reach it: see ipvsadm -Ln; computed: it should reach an endpoint',
    ]);
    assert.match(
      of(lost, rejected).join(),
      /^packet 1 was lost after hook prerouting, .*be rejected$/,
    );
  });

  it('none if a node that does not forward loses the packet', () => {
    const forwarding = { step: 'forwarding', title: '', decision: '', object: null } as const;
    const computed = { verdict: 'dropped', steps: [{ ...forwarding, detail: [] }] } as const;
    const lost = { result: 'lost', passed: ['prerouting'] } as const;
    assert.deepEqual(of(lost, computed), []);
    assert.equal(of({ ...lost, passed: ['prerouting', 'forward'] }, computed).length, 1);
    assert.equal(of({}, computed).length, 1);
  });

  it('packets with the same difference share a sentence', () => {
    const two = [1, 2].map((packet) => ({ ...PATH, packet, translatedTo: null }));
    assert.deepEqual(
      differences(two, () => ({ path: COMPUTED, effects: [] })),
      ['packets 1, 2: was not translated; computed: it should reach an endpoint'],
    );
  });
});

describe('print: traces', () => {
  it('a numbered list of steps', () => {
    const request = { from: 'x', to: 'y', protocol: 'TCP', port: 80 } as const;
    const answer = { ...request, paths: [{ ...COMPUTED, outcome: 'uncertain' as const }] };
    assert.equal(
      traceAnswerText(answer),
      [
        'Computed, IPv4: 192.0.2.50 to 10.96.0.10 port 80/TCP',
        '   1. Service: it is a cluster IP [Service default/web]',
        '        no endpoint is ready',
        '  uncertain: it depends',
        '  Outcome: uncertain',
        '',
      ].join('\n'),
    );
  });

  it('rules of other programs without control characters', () => {
    const text = 'tcp dport 80 drop comment "\u001b[2J"';
    assert.match(liveLineText(step({ text })), /comment "\\u001b\[2J"\n$/);
  });

  it('steps and summary of a live trace', () => {
    const first = step({
      source: '192.0.2.50:40000',
      destination: '10.96.0.10:80',
      inInterface: 'eth0',
    });
    assert.equal(
      liveLineText(first),
      [
        '  packet 1: 192.0.2.50:40000 to 10.96.0.10:80, from eth0',
        '    ip filter FORWARD rule 3: drop (another program)',
        '        tcp dport 8080 drop',
        '',
      ].join('\n'),
    );
    const paths = [{ ...PATH, result: 'dropped' as const, decidedBy: step(), masqueradedAs: null }];
    const summary = {
      event: 'summary',
      at: '',
      ended: 'time',
      paths,
      lost: 0,
      others: 0,
      notes: [],
    } as const;
    assert.equal(
      liveLineText({ ...summary, differences: ['packet 1 was dropped'] }),
      [
        'Live result (the time is over):',
        `  packet 1: was dropped by ${RULE}; translated to 10.244.0.1:8080`,
        'Differences:',
        '  packet 1 was dropped',
        '',
      ].join('\n'),
    );
    const inIpvs = { ...PATH, result: 'lost', translatedTo: null, masqueradedAs: null } as const;
    assert.match(
      liveLineText({ ...summary, paths: [{ ...inIpvs, lostInIpvs: true }], differences: [] }),
      /^ {2}packet 1: was lost in IPVS\nKernel and computed path agree\.$/m,
    );
  });
});
