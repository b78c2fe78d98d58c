import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { execa } from 'execa';
import { parse } from 'yaml';
import { ROOT, readText } from './manifests.ts';
import { METRIC_NAMES, metricOf } from './metric-names.ts';

interface Rule {
  readonly alert: string;
  readonly expr: string;
  readonly annotations: { readonly summary: string; readonly description: string };
}

interface Panel {
  readonly id: number;
  readonly type: string;
  readonly title: string;
  readonly description?: string;
  readonly gridPos: {
    readonly x: number;
    readonly y: number;
    readonly w: number;
    readonly h: number;
  };
  readonly targets?: readonly { readonly refId: string; readonly expr: string }[];
}

const ALERTS = 'deploy/monitoring/alerts.yaml';
const ALERT_TESTS = 'test/deploy/alerts.promtool.yaml';
const alerts: readonly Rule[] = parse(readText(ALERTS)).groups.flatMap(
  ({ rules }: { rules: readonly Rule[] }) => rules,
);
const dashboard: {
  readonly panels: readonly Panel[];
  readonly templating: { readonly list: readonly { readonly name: string }[] };
} = JSON.parse(readText('deploy/monitoring/dashboard.json'));
const panelExpressions = dashboard.panels.flatMap(({ targets = [] }) =>
  targets.map(({ expr }) => expr),
);

const promtool = (...args: readonly string[]) =>
  execa('promtool', args, { cwd: ROOT, reject: false, all: true });

describe('monitoring: alert rules', () => {
  it('alert rules pass promtool check rules', async () => {
    const { exitCode, all } = await promtool(
      'check',
      'rules',
      '--lint=all',
      '--lint-fatal',
      ALERTS,
    );
    assert.equal(exitCode, 0, all);
  });

  it('alerts fire in the tested situations and only then', async () => {
    const { exitCode, all } = await promtool('test', 'rules', ALERT_TESTS);
    assert.equal(exitCode, 0, all);
  });

  it('every alert is tested both firing and not firing', () => {
    const cases: readonly { alertname: string; exp_alerts?: readonly object[] }[] = parse(
      readText(ALERT_TESTS),
    ).tests.flatMap(({ alert_rule_test }: { alert_rule_test: object[] }) => alert_rule_test);
    const names = alerts.map(({ alert }) => alert).sort();
    for (const fires of [true, false]) {
      const seen = cases.filter((each) => (each.exp_alerts !== undefined) === fires);
      assert.deepEqual([...new Set(seen.map(({ alertname }) => alertname))].sort(), names);
    }
  });

  it('every alert has a runbook, and every runbook an alert', () => {
    const headings = [
      ...readText('docs/operate/troubleshoot.md').matchAll(/^### (Portwide\w+)$/gm),
    ];
    assert.deepEqual(
      headings.map(([, name]) => name),
      alerts.map(({ alert }) => alert),
    );
  });
});

describe('monitoring: dashboard', () => {
  it('the dashboard has valid queries', async () => {
    const directory = mkdtempSync(join(tmpdir(), 'portwide-promql-'));
    try {
      const rules = panelExpressions.map((expr, index) => ({
        record: `panel:${index}`,
        expr: expr
          .replaceAll('$__rate_interval', '5m')
          .replaceAll('$job', 'portwide')
          .replaceAll('$instance', '.*'),
      }));
      const file = join(directory, 'panels.json');
      writeFileSync(file, JSON.stringify({ groups: [{ name: 'panels', rules }] }));
      const { exitCode, all } = await promtool('check', 'rules', file);
      assert.equal(exitCode, 0, all);
      assert.match(all, new RegExp(`${rules.length} rules found`));
    } finally {
      rmSync(directory, { recursive: true, force: true });
    }
  });

  it('the dashboard uses only defined variables', () => {
    const known = dashboard.templating.list.map(({ name }) => name);
    for (const [, name = ''] of JSON.stringify(dashboard).matchAll(/\$\{?(\w+)/g)) {
      assert.ok([...known, '__rate_interval', '__all'].includes(name), name);
    }
  });

  it('dashboard panels have descriptions and do not overlap', () => {
    const { panels } = dashboard;
    assert.equal(new Set(panels.map(({ id }) => id)).size, panels.length);
    for (const [index, { title, type, description, gridPos: a }] of panels.entries()) {
      assert.ok(type === 'row' || description, title);
      assert.ok(a.x + a.w <= 24, title);
      for (const { title: other, gridPos: b } of panels.slice(index + 1)) {
        const apart = a.x + a.w <= b.x || b.x + b.w <= a.x || a.y + a.h <= b.y || b.y + b.h <= a.y;
        assert.ok(apart, `${title} overlaps ${other}`);
      }
    }
  });
});

describe('monitoring: metrics of dashboard and alert rules', () => {
  const expressions = [...alerts.map(({ expr }) => expr), ...panelExpressions];
  const seriesOf = (expr: string) => expr.match(/\b(kubeproxy|portwide|process)_\w+/g) ?? [];

  it('metrics of dashboard and alerts are listed in metric-names.ts', () => {
    const read = new Set(expressions.flatMap(seriesOf).map(metricOf));
    assert.deepEqual([...read].sort(), Object.keys(METRIC_NAMES).sort());
    for (const expr of expressions) {
      assert.ok(seriesOf(expr).length > 0 || /\bup\{/.test(expr), expr);
    }
  });

  it('gauges are used without rate(), counters with rate()', () => {
    for (const expr of expressions) {
      const rates = [...expr.matchAll(/(?:rate|increase)\(\s*(\w+)/g)].map(([, name = '']) => name);
      for (const series of seriesOf(expr)) {
        const type = METRIC_NAMES[metricOf(series)]?.type;
        assert.equal(type === 'gauge', !rates.includes(series), `${series}: ${expr}`);
        assert.ok(type !== 'histogram' || series !== metricOf(series), `${series}: ${expr}`);
      }
    }
  });

  it('metrics have the labels that queries group by', () => {
    for (const expr of expressions) {
      const labels = seriesOf(expr).flatMap((name) => METRIC_NAMES[metricOf(name)]?.labels ?? []);
      const known = ['job', 'instance', 'le', ...labels];
      const used = [
        ...[...expr.matchAll(/(?:by|on|ignoring) \(([^)]*)\)/g)].flatMap(([, list = '']) =>
          list.split(', '),
        ),
        ...[...expr.matchAll(/(\w+)(?:=~|!=|=)"/g)].map(([, label = '']) => label),
      ];
      for (const label of used) assert.ok(known.includes(label), `${label}: ${expr}`);
    }
  });
});
