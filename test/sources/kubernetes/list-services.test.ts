import assert from 'node:assert/strict';
import { ClusterConfigError } from '../../../sources/kubernetes/config.ts';
import { ApiError, ConnectionError, MalformedAnswer } from '../../../sources/kubernetes/errors.ts';
import { listServices } from '../../../sources/kubernetes/list-services.ts';
import { ApiServerDouble } from '../../api-server/double.ts';
import { sliceManifest } from '../../e2e/manifests.ts';
import { IMPATIENT, service } from './world.ts';

describe('a list of all Services', () => {
  let double: ApiServerDouble;
  let problems: string[];
  beforeEach(async () => {
    problems = [];
    double = new ApiServerDouble();
    await double.listen();
  });
  afterEach(() => double.close());

  const list = () =>
    listServices({
      master: double.url,
      timeouts: IMPATIENT,
      onProblem: ({ message }) => problems.push(message),
    });

  it('is asked for in one piece, and not watched', async () => {
    const names = Array.from({ length: 1001 }, (_, index) => `s${1000 + index}`);
    double.put(...names.map((name) => service(name, 1)), sliceManifest('a', 4, []));
    const services = await list();
    assert.deepEqual(
      services.map(({ key }) => key),
      names.map((name) => `default/${name}`),
    );
    const asked = double.requests().map(({ verb, path, query }) => ({ verb, path, query }));
    assert.deepEqual(asked, [{ verb: 'list', path: '/api/v1/services', query: {} }]);
  });

  it('has those of other proxies, and headless ones', async () => {
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

  it('leaves out what cannot be read, and tells of it', async () => {
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
    ['may not be asked', { kind: 'status', code: 403, reason: 'Forbidden' }, ApiError],
    ['has enough to do', { kind: 'status', code: 429, reason: 'TooManyRequests' }, ApiError],
    ['hangs up', { kind: 'refuse' }, ConnectionError],
    ['says nothing', { kind: 'silence' }, ConnectionError],
    ['breaks off', { kind: 'cut' }, ConnectionError],
    ['ends half-way', { kind: 'truncate' }, MalformedAnswer],
    ['speaks HTML', { kind: 'text', text: '<html>' }, MalformedAnswer],
    [
      'lists something else',
      { kind: 'text', text: '{"kind":"PodList","metadata":{"resourceVersion":"1"},"items":[{}]}' },
      MalformedAnswer,
    ],
  ] as const) {
    it(`fails, and is not asked for again, when the server ${what}`, async () => {
      double.put(service('a', 1), service('b', 1));
      double.fail({ fault });
      await assert.rejects(list(), error);
      assert.equal(double.requests().length, 1);
    });
  }

  it('fails when there is no server, and when it is not known where one is', async () => {
    await double.close();
    await assert.rejects(list(), ConnectionError);
    const options = { master: 'nonsense', onProblem: () => {} };
    await assert.rejects(listServices(options), ClusterConfigError);
  });
});
