import assert from 'node:assert/strict';
import { Ajv } from 'ajv';
import { parse } from 'yaml';
import { configSchema } from '../../scripts/chart-schema.ts';
import { readPage } from '../docs/page.ts';
import { CHART, DEFAULT_VALUES, TEMPLATES, type Values } from './chart.ts';
import { readText } from './manifests.ts';

interface Schema {
  readonly $ref?: string;
  readonly properties?: Readonly<Record<string, Schema>>;
}

const schema: Schema & { definitions: Record<string, Schema> } = JSON.parse(
  readText(`${CHART}/values.schema.json`),
);

/** The faults that Helm reports. */
function faultsOf(values: Values): string[] {
  const ajv = new Ajv({ allErrors: true, allowUnionTypes: true });
  ajv.validate(schema, values);
  return (ajv.errors ?? []).map(({ instancePath, message, params }) => {
    return `${instancePath}: ${message} ${params.additionalProperty ?? ''}`.trim();
  });
}

/** Paths of the values that the schema names, without those inside `config`. */
function pathsOf(part: Schema, parent = ''): string[] {
  const name = part.$ref?.split('/').at(-1);
  // Templates pass on these values whole.
  if (['.config', '.updateStrategy'].includes(parent) || name !== undefined) return [parent];
  const { properties } = part;
  if (properties === undefined) return [parent];
  return Object.entries(properties).flatMap(([key, below]) => pathsOf(below, `${parent}.${key}`));
}

/** Helm sets it for the chart as a dependency. */
const paths = pathsOf(schema).filter((path) => path !== '.global');

describe('chart: values.schema.json', () => {
  it('accepts values.yaml, which names every value', () => {
    assert.deepEqual(faultsOf(DEFAULT_VALUES), []);
    for (const path of paths) {
      const value = path
        .split('.')
        .slice(1)
        .reduce<unknown>((values, key) => (values as Values | undefined)?.[key], DEFAULT_VALUES);
      assert.notEqual(value, undefined, path);
    }
  });

  it('templates use the values that the schema names, and no others', () => {
    const used = TEMPLATES.flatMap((path) => [...readText(path).matchAll(/\.Values((?:\.\w+)+)/g)])
      .map(([, path = '']) => path)
      // Single fields of the configuration file, which is also passed on whole.
      .filter((path) => !path.startsWith('.config.'));
    assert.deepEqual([...new Set(used)].sort(), [...paths].sort());
    // Values in other forms would not be found.
    for (const path of TEMPLATES) assert.doesNotMatch(readText(path), /\.Values(?!\.\w)/, path);
  });

  it('has the fields of the configuration file', () => {
    assert.deepEqual(schema.properties?.config, configSchema(), 'run `npm run docs`');
  });

  const cases: readonly [Values, string][] = [
    [{ images: {} }, ': must NOT have additional properties images'],
    [{ image: { name: 'a' } }, '/image: must NOT have additional properties name'],
    [{ image: { tag: 1.2 } }, '/image/tag: must be string'],
    [{ image: { digest: '0123' } }, '/image/digest: must match pattern "^(sha256:[0-9a-f]{64})?$"'],
    [{ apiServer: '10.0.0.1:6443' }, '/apiServer: must match pattern "^https://"'],
    [{ config: { modus: 'x' } }, '/config: must NOT have additional properties modus'],
    [{ config: { oomScoreAdj: '1' } }, '/config/oomScoreAdj: must be integer,null'],
    [
      { config: { clientConnection: { kubeconfig: '/a' } } },
      '/config/clientConnection: must NOT have additional properties kubeconfig',
    ],
    [{ extraArgs: 'a' }, '/extraArgs: must be array'],
    [{ tolerations: [{ key: 1 }] }, '/tolerations/0/key: must be string'],
    [{ dns: { replicas: '2' } }, '/dns/replicas: must be integer'],
    [{ monitor: { kind: 'Probe' } }, '/monitor/kind: must be equal to one of the allowed values'],
    [{ networkPolicy: { enabled: 'yes' } }, '/networkPolicy/enabled: must be boolean'],
  ];
  for (const [values, fault] of cases) {
    it(`refuses ${JSON.stringify(values)}`, () => assert.deepEqual(faultsOf(values), [fault]));
  }

  it('accepts the values that comments in values.yaml name', () => {
    const values = {
      image: { pullSecrets: [{ name: 'my-registry' }], digest: `sha256:${'0'.repeat(64)}` },
      config: { metricsBindAddress: '0.0.0.0:10249', ipvs: { syncPeriod: '30s' } },
      monitor: { kind: 'ServiceMonitor', labels: { release: 'prometheus' } },
      global: { imageRegistry: 'r.example' },
    };
    assert.deepEqual(faultsOf(values), []);
  });
});

describe('chart: pages', () => {
  it('the quickstart sets values that the schema accepts', () => {
    const [, section = ''] = readPage('docs/quickstart.md').split('### With Helm');
    const [text = ''] = section.split('\n## ');
    const pairs = text.matchAll(/(?:--set |`)([\w.]+)=([\w:/.-]+)/g);
    const paths = [...pairs].map(([, path = '', given = '']) => {
      const value: unknown = given === 'true' ? true : given;
      const values = path.split('.').reduceRight((below, key) => ({ [key]: below }), value);
      assert.deepEqual(faultsOf(values as Values), [], path);
      return path;
    });
    assert.deepEqual(paths.sort(), [
      'admission.allPorts',
      'apiServer',
      'config.clusterCIDR',
      'image.repository',
      'kubeProxyConfigMap',
    ]);
  });
});

describe('chart: Chart.yaml', () => {
  it('has the version of package.json', () => {
    const { version, description } = JSON.parse(readText('package.json'));
    const chart = parse(readText(`${CHART}/Chart.yaml`));
    assert.deepEqual(
      [chart.version, chart.appVersion, chart.description],
      [version, version, description],
    );
  });
});
