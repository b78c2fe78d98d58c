import assert from 'node:assert/strict';
import {
  ApiError,
  ClusterConfigError,
  ConnectionError,
  MalformedResponse,
} from '../../../sources/kubernetes/errors.ts';
import { listOnce } from '../../../sources/kubernetes/list-once.ts';
import type { Resource } from '../../../sources/kubernetes/resources.ts';
import { policyResources } from '../../../sources/kubernetes/resources.ts';
import { ApiServerDouble } from '../../api-server/double.ts';
import { sliceManifest } from '../../e2e/manifests.ts';
import { adminPolicy, namespaceManifest, networkPolicy } from '../../e2e/policy-manifests.ts';
import { IMPATIENT, PATIENT, service } from './source-fixture.ts';

/** All Services, whichever proxy serves them. */
const SERVICES = { kind: 'Service', paths: ['/api/v1/services'], selectors: {} } as const;

describe('list-once: listing objects once', () => {
  let double: ApiServerDouble;
  let problems: string[];
  beforeEach(async () => {
    problems = [];
    double = new ApiServerDouble();
    await double.listen();
  });
  afterEach(() => double.close());

  const listAll = (resources: readonly Resource[], timeouts = PATIENT) =>
    listOnce({
      master: double.url,
      resources,
      timeouts,
      onProblem: ({ message }) => problems.push(message),
    });
  const list = async (timeouts = PATIENT) =>
    (await listAll([SERVICES], timeouts)).flatMap((object) =>
      object.kind === 'Service' ? [object] : [],
    );

  it('lists without pages and without a watch', async () => {
    const names = Array.from({ length: 1001 }, (_, index) => `s${1000 + index}`);
    double.put(...names.map((name) => service(name, 1)), sliceManifest('a', 4, []));
    const services = await list();
    assert.deepEqual(
      services.map(({ key }) => key),
      names.map((name) => `default/${name}`),
    );
    const requested = double.requests().map(({ verb, path, query }) => ({ verb, path, query }));
    assert.deepEqual(requested, [{ verb: 'list', path: '/api/v1/services', query: {} }]);
  });

  it('includes headless Services and Services of other proxies', async () => {
    const metadata = (name: string, label: string) => ({
      name,
      namespace: 'default',
      labels: { [`service.kubernetes.io/${label}`]: 'x' },
    });
    double.put(
      { ...service('a', 1), metadata: metadata('a', 'service-proxy-name') },
      { ...service('b', 1), metadata: metadata('b', 'headless'), spec: { clusterIP: 'None' } },
    );
    const services = await list();
    assert.deepEqual(
      services.map(({ key, otherProxy, headless }) => [key, otherProxy, headless]),
      [
        ['default/a', true, false],
        ['default/b', false, true],
      ],
    );
  });

  it('lists one resource after the other, and treats CRDs that are not installed as empty', async () => {
    double.put(namespaceManifest('default'), networkPolicy('web', { podSelector: {} }));
    double.uninstall('cidrgroups');
    const objects = await listAll(policyResources());
    assert.deepEqual(
      objects.map(({ kind, key }) => `${kind} ${key}`),
      ['Namespace default', 'NetworkPolicy default/web'],
    );
    assert.equal(double.requests().length, policyResources().length);
    double.uninstall('services');
    await assert.rejects(list(), ApiError);
  });

  for (const [versions, requested, found] of [
    [['v1beta1'], ['v1beta1'], ['a']],
    [['v1beta1', 'v1alpha2'], ['v1beta1'], ['a']],
    [['v1alpha2'], ['v1beta1', 'v1alpha2'], ['a']],
    [[], ['v1beta1', 'v1alpha2'], []],
  ] as const) {
    it(`requests ${requested} of policies when ${versions.join() || 'no version'} is served`, async () => {
      const cnp = policyResources().filter(({ kind }) => kind === 'ClusterNetworkPolicy');
      double.put(adminPolicy('ClusterNetworkPolicy', 'a', { subject: { namespaces: {} } }));
      const group = 'policy.networking.k8s.io';
      double.serve('clusternetworkpolicies', ...versions.map((version) => `${group}/${version}`));
      const objects = await listAll(cnp);
      assert.deepEqual(
        objects.map(({ key }) => key),
        found,
      );
      assert.deepEqual(
        double.requests().map(({ path }) => path),
        requested.map((version) => `/apis/${group}/${version}/clusternetworkpolicies`),
      );
      assert.deepEqual(problems, []);
    });
  }

  it('does not request another version after 403', async () => {
    const fault = { kind: 'status', code: 403, reason: 'Forbidden' } as const;
    double.fail({ verb: 'list', resource: 'clusternetworkpolicies', fault });
    await assert.rejects(listAll(policyResources()), ApiError);
  });

  it('fails when reading a CRD is forbidden', async () => {
    const fault = { kind: 'status', code: 403, reason: 'Forbidden' } as const;
    double.fail({ verb: 'list', resource: 'adminnetworkpolicies', fault });
    await assert.rejects(listAll(policyResources()), ApiError);
  });

  it('skips and reports objects that cannot be read', async () => {
    double.put(service('a', 1), service('b', 70_000), service('c', 1));
    const services = await list();
    assert.deepEqual(
      services.map(({ name }) => name),
      ['a', 'c'],
    );
    assert.equal(problems.length, 1);
    assert.match(problems[0] ?? '', /^Service default\/b: spec\.ports\[0\]\.port: /);
    const metadata = { resourceVersion: '1' };
    const text = JSON.stringify({ kind: 'ServiceList', metadata, items: [7, null] });
    double.fail({ fault: { kind: 'text', text } });
    assert.deepEqual(await list(), []);
    assert.equal(problems.length, 3);
  });

  for (const [what, fault, error] of [
    ['responds with 403', { kind: 'status', code: 403, reason: 'Forbidden' }, ApiError],
    ['responds with 429', { kind: 'status', code: 429, reason: 'TooManyRequests' }, ApiError],
    ['closes the connection', { kind: 'refuse' }, ConnectionError],
    ['does not respond', { kind: 'silence' }, ConnectionError],
    ['closes the connection during the response', { kind: 'cut' }, ConnectionError],
    ['ends the response early', { kind: 'truncate' }, MalformedResponse],
    ['sends HTML', { kind: 'text', text: '<html>' }, MalformedResponse],
    [
      'lists another kind',
      { kind: 'text', text: '{"kind":"PodList","metadata":{"resourceVersion":"1"},"items":[{}]}' },
      MalformedResponse,
    ],
  ] as const) {
    it(`fails without a retry when the server ${what}`, async () => {
      double.put(service('a', 1), service('b', 1));
      double.fail({ fault });
      await assert.rejects(list(fault.kind === 'silence' ? IMPATIENT : PATIENT), error);
      assert.equal(double.requests().length, 1);
    });
  }

  it('fails when the server is unreachable or unknown', async () => {
    await double.close();
    await assert.rejects(list(), ConnectionError);
    const options = { master: 'nonsense', resources: [SERVICES], onProblem: () => {} };
    await assert.rejects(listOnce(options), ClusterConfigError);
  });
});
