import assert from 'node:assert/strict';
import fc from 'fast-check';
import type { Outcome, ProbeProtocol } from '../../probe/outcome.ts';
import { readPortGroups, selectPorts } from '../../probe/ports.ts';
import {
  escapeXml,
  isAllAnswered,
  type ProbeReport,
  reportJson,
  reportJunit,
  reportText,
} from '../../probe/report.ts';
import { Tally } from '../../probe/tally.ts';
import { parseXml } from './xml.ts';

type Result = readonly [ProbeProtocol, number, Outcome, string?];

function reportOf(ports: string, results: readonly Result[]): ProbeReport {
  const tally = new Tally();
  for (const [protocol, port, outcome, text = ''] of results) {
    tally.add(protocol, port, { outcome, text });
  }
  const selections = [...new Set(results.map(([protocol]) => protocol))].map((protocol) =>
    selectPorts(protocol, ports, 5),
  );
  return { vip: '10.96.0.10', seed: 5, selections, tally, duration: 1234 };
}

/** The report of an address. */
const one = (report: ProbeReport) => ({ service: undefined, reports: [report] });

describe('probe: reports', () => {
  it('of a Service have a part for each VIP', () => {
    const report = reportOf('10', [['TCP', 10, 'answered', 'a']]);
    const failed = reportOf('10', [['TCP', 10, 'rejected']]);
    const reports = [report, { ...failed, vip: 'fd00:10:96::10' }];
    const ofService = { service: 'shop/web', reports };

    const [first = '', second = ''] = reportText(ofService).split('\n\n');
    assert.match(first, /^PROTOCOL .*\nTCP +answered .*\nProbed 10\.96\.0\.10 in 1\.2 s\.$/s);
    assert.match(second, /^PROTOCOL .*\nTCP +rejected .*\nProbed fd00:10:96::10 in 1\.2 s\.\n$/s);

    const document = JSON.parse(reportJson(ofService));
    assert.deepEqual([document.service, document.allAnswered], ['shop/web', false]);
    assert.deepEqual(
      document.vips,
      reports.map((each) => JSON.parse(reportJson(one(each)))),
    );

    const { attributes, children } = parseXml(reportJunit(ofService));
    assert.deepEqual(attributes, {
      name: 'portwide probe shop/web',
      tests: '2',
      failures: '1',
      errors: '0',
      time: '2.468',
    });
    assert.deepEqual(
      children.map((suite) => [suite.attributes.name, suite.attributes.failures]),
      [
        ['10.96.0.10', '0'],
        ['fd00:10:96::10', '1'],
      ],
    );
  });

  it('the table groups consecutive ports by outcome and counts endpoints', () => {
    const report = reportOf('10-14,80', [
      ['TCP', 10, 'answered', '{"host":"pod-1"}'],
      ['TCP', 11, 'answered', '{"host":"pod-2"}'],
      ['TCP', 12, 'rejected'],
      ['TCP', 13, 'unreachable', 'EHOSTUNREACH'],
      ['TCP', 14, 'answered', 'pod-1'],
      ['TCP', 80, 'answered', ''],
      ['UDP', 10, 'timed out'],
      ['UDP', 11, 'timed out'],
    ]);
    assert.deepEqual(reportText(one(report)).split('\n'), [
      'PROTOCOL  OUTCOME      PROBES  PORTS        ENDPOINTS OR ERRORS',
      'TCP       answered     4       10-11,14,80  pod-1 2, (no text) 1, pod-2 1',
      'TCP       rejected     1       12',
      'TCP       unreachable  1       13           EHOSTUNREACH 1',
      'UDP       timed out    2       10-11',
      'Probed 10.96.0.10 in 1.2 s.',
      '',
    ]);
  });

  it('names up to 20 ports, and of more the first, the last and their number', () => {
    const textOf = (count: number) => {
      const [{ ports } = { ports: [] }] = readPortGroups(`random:${count}`, 5);
      const results = ports.map((port) => ['TCP', port, 'answered', 'a'] as const);
      return { ports, text: reportText(one(reportOf(`random:${count}`, results))) };
    };
    const few = textOf(20);
    assert.ok(few.text.includes(` ${few.ports.join(',')} `), few.text);
    const { ports, text } = textOf(21);
    assert.ok(text.includes(` ${ports[0]}-${ports.at(-1)} (21 ports) `), text);
    assert.match(text, /repeat with --seed=5/);
  });

  it('a port with two outcomes is in both rows', () => {
    const report = reportOf('10', [
      ['TCP', 10, 'answered', 'a'],
      ['TCP', 10, 'timed out'],
    ]);
    const { results } = JSON.parse(reportJson(one(report)));
    assert.deepEqual(
      results.map(({ outcome, probes, runs }: never) => [outcome, probes, runs]),
      ['answered', 'timed out'].map((outcome) => [outcome, 1, [{ from: 10, to: 10, ports: 1 }]]),
    );
    assert.equal(isAllAnswered(report), false);
  });

  it('counts at most 50 different answers separately', () => {
    const results = Array.from(
      { length: 60 },
      (_, index): Result => ['TCP', index + 1, 'answered', `a${index}`],
    );
    const {
      results: [row],
    } = JSON.parse(reportJson(one(reportOf('1-60', results))));
    assert.equal(row.details.length, 51);
    assert.deepEqual(row.details[0], { text: '(others)', probes: 10 });
  });

  it('JUnit has a testcase for each protocol and item of --ports; items with unanswered ports fail', () => {
    const report = reportOf('10-12,80', [
      ['TCP', 10, 'answered', 'a'],
      ['TCP', 11, 'timed out'],
      ['TCP', 12, 'rejected'],
      ['TCP', 80, 'answered', 'a'],
      ['UDP', 80, 'unexpected', '<x>'],
      ['TCP', 12, 'unreachable', 'EHOSTUNREACH'],
      ['TCP', 80, 'unreachable', 'ENETUNREACH'],
    ]);
    const document = parseXml(reportJunit(one(report)));
    assert.equal(document.name, 'testsuites');
    assert.deepEqual([document.attributes.tests, document.attributes.failures], ['4', '3']);
    const [suite] = document.children;
    assert.equal(suite?.attributes.name, '10.96.0.10');
    const cases = suite?.children.filter(({ name }) => name === 'testcase') ?? [];
    assert.deepEqual(
      cases.map(({ attributes, children: [failure] }) => [
        attributes.classname,
        attributes.name,
        failure?.attributes.type,
        failure?.text,
      ]),
      [
        [
          'portwide.probe.10.96.0.10.TCP',
          '10-12',
          'rejected, timed out, unreachable',
          'rejected: 12\ntimed out: 11\nunreachable: 12',
        ],
        ['portwide.probe.10.96.0.10.TCP', '80', 'unreachable', 'unreachable: 80'],
        ['portwide.probe.10.96.0.10.UDP', '10-12', undefined, undefined],
        ['portwide.probe.10.96.0.10.UDP', '80', 'unexpected', 'unexpected: 80 (<x> 1)'],
      ],
    );
  });

  it('JUnit is well-formed XML whatever a server answers', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'binary', maxLength: 40 }), (text) => {
        const report = reportOf('7', [['TCP', 7, 'unexpected', text]]);
        assert.equal(parseXml(reportJunit(one(report))).attributes.failures, '1');
        assert.doesNotThrow(() => parseXml(`<a b="${escapeXml(text)}">${escapeXml(text)}</a>`));
      }),
    );
    assert.throws(() => parseXml('<a><b></a></b>'));
    assert.throws(() => parseXml('<a>\u0001</a>'));
    assert.throws(() => parseXml('<a>& b</a>'));
  });
});
