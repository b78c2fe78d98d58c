import assert from 'node:assert/strict';
import { parse } from 'yaml';
import { readConfigFile } from '../../config/file.ts';
import { renderChart, renderNotes, type Values } from './chart.ts';
import { kustomize } from './kustomize.ts';
import { type RawObject, readObjects, readText } from './manifests.ts';
import { schemaFaults } from './schema.ts';

/** What Helm has and kustomize has not. */
const HELM_LABELS = ['app.kubernetes.io/instance', 'app.kubernetes.io/managed-by', 'helm.sh/chart'];
const KEEP = 'helm.sh/resource-policy';

type Fields = Record<string, unknown>;

/** A form in which equal objects are deeply equal: without what only Helm has, in one order. */
function comparable(objects: readonly RawObject[]): Record<string, unknown> {
  const entries = objects.map((object): [string, unknown] => {
    const copy = structuredClone(object) as Fields & { metadata: Record<string, unknown> };
    const { labels, annotations, ...metadata } = copy.metadata;
    copy.metadata = {
      ...metadata,
      labels: without(labels, HELM_LABELS),
      annotations: without(annotations, [KEEP]),
    };
    if (object.kind === 'ConfigMap')
      copy.data = mapValues(copy.data, (text) => parse(String(text)));
    for (const container of containersOf(copy as never)) {
      (container.volumeMounts as { mountPath: string }[] | undefined)?.sort((a, b) =>
        a.mountPath < b.mountPath ? -1 : 1,
      );
    }
    return [`${object.kind} ${object.metadata.name}`, copy];
  });
  assert.equal(new Set(entries.map(([name]) => name)).size, entries.length);
  return Object.fromEntries(entries);
}

function without(fields: unknown, names: readonly string[]): Fields {
  return Object.fromEntries(Object.entries(fields ?? {}).filter(([name]) => !names.includes(name)));
}

function mapValues(fields: unknown, map: (value: unknown) => unknown): Fields {
  return Object.fromEntries(Object.entries(fields ?? {}).map(([key, value]) => [key, map(value)]));
}

function containersOf(object: RawObject): Fields[] {
  const pod = podOf(object);
  return [...(pod?.initContainers ?? []), ...(pod?.containers ?? [])];
}

function podOf(object: RawObject) {
  const spec = object.spec as
    | { template?: { spec: Fields & Record<string, Fields[]> } }
    | undefined;
  return spec?.template?.spec;
}

function find(objects: readonly RawObject[], kind: string, name = 'portwide'): RawObject & Fields {
  const found = objects.find((each) => each.kind === kind && each.metadata.name === name);
  return found ?? assert.fail(`${kind} ${name}`);
}

const BASE = 'deploy/base';
const NODE_PORTS = 'deploy/admission-node-ports.yaml';
const NODE_PORTS_BETA = 'deploy/admission-node-ports-v1beta1.yaml';
const MUTATING = (version: string) =>
  `admissionregistration.k8s.io/${version}/MutatingAdmissionPolicy`;

describe('chart: objects equal the output of kustomize', () => {
  const cases: readonly [string, Values, () => RawObject[], (readonly string[])?][] = [
    ['no values: base', {}, () => kustomize(BASE)],
    [
      'networkPolicy.enabled: network-policy with its CRD',
      { networkPolicy: { enabled: true } },
      () => kustomize(BASE, 'deploy/network-policy'),
    ],
    [
      'networkPolicy.adminNetworkPolicyCrds: admin-network-policy',
      { networkPolicy: { enabled: true, adminNetworkPolicyCrds: true } },
      () => kustomize(BASE, 'deploy/network-policy', 'deploy/admin-network-policy'),
    ],
    ['dns.enabled: dns', { dns: { enabled: true } }, () => kustomize(BASE, 'deploy/dns')],
    [
      'dns.kubeDns.enabled: kube-dns',
      { dns: { enabled: true, kubeDns: { enabled: true } } },
      () => kustomize(BASE, 'deploy/kube-dns'),
    ],
    [
      'kubeProxyConfigMap: kubeadm',
      { kubeProxyConfigMap: 'kube-proxy' },
      () => kustomize('deploy/kubeadm'),
    ],
    [
      'kubeProxyConfigMap with networkPolicy.enabled: kubeadm with the component',
      { kubeProxyConfigMap: 'kube-proxy', networkPolicy: { enabled: true } },
      () => kustomize('deploy/kubeadm', 'deploy/network-policy'),
    ],
    [
      'admission.allPorts: the folder deploy',
      { admission: { allPorts: true } },
      () => kustomize('deploy'),
    ],
    [
      'admission.nodePorts: version v1 by default',
      { admission: { nodePorts: true } },
      () => [...kustomize(BASE), ...readObjects(NODE_PORTS)],
    ],
    [
      'admission.nodePorts: version v1beta1 if the cluster has only that',
      { admission: { nodePorts: true } },
      () => [...kustomize(BASE), ...readObjects(NODE_PORTS_BETA)],
      [MUTATING('v1beta1')],
    ],
    [
      'admission.nodePorts: version v1 if the cluster has both',
      { admission: { nodePorts: true } },
      () => [...kustomize(BASE), ...readObjects(NODE_PORTS)],
      [MUTATING('v1beta1'), MUTATING('v1')],
    ],
    [
      'admission.nodePortsVersion: as set, whatever the cluster has',
      { admission: { nodePorts: true, nodePortsVersion: 'v1beta1' } },
      () => [...kustomize(BASE), ...readObjects(NODE_PORTS_BETA)],
      [MUTATING('v1')],
    ],
  ];
  for (const [title, values, expected, apiVersions] of cases) {
    it(title, () => {
      const objects = renderChart(values, apiVersions === undefined ? {} : { apiVersions });
      assert.deepEqual(comparable(objects), comparable(expected()));
    });
  }

  it('Helm keeps CRDs and Service kube-dns when it uninstalls', () => {
    const objects = renderChart({
      networkPolicy: { enabled: true, adminNetworkPolicyCrds: true },
      dns: { enabled: true, kubeDns: { enabled: true } },
    });
    const kept = objects.filter(
      ({ metadata }) => (metadata as { annotations?: Fields }).annotations?.[KEEP] === 'keep',
    );
    assert.deepEqual(kept.map(({ kind, metadata }) => `${kind} ${metadata.name}`).sort(), [
      'CustomResourceDefinition adminnetworkpolicies.policy.networking.k8s.io',
      'CustomResourceDefinition baselineadminnetworkpolicies.policy.networking.k8s.io',
      'CustomResourceDefinition cidrgroups.policy.networking.k8s.io',
      'Service kube-dns',
    ]);
  });

  it('all objects have the labels of Helm, pods and selectors have not', () => {
    for (const object of renderChart({ dns: { enabled: true }, admission: { allPorts: true } })) {
      const { labels } = object.metadata as unknown as { labels: Fields };
      for (const name of HELM_LABELS) assert.ok(name in labels, `${object.kind} lacks ${name}`);
      assert.doesNotMatch(JSON.stringify(object.spec ?? ''), /helm/i);
    }
  });
});

describe('chart: values of the agent and the DNS server', () => {
  const daemonSet = (values: Values) => find(renderChart(values), 'DaemonSet');
  const deployment = (values: Values) =>
    find(renderChart({ dns: { enabled: true, ...values } }), 'Deployment', 'portwide-dns');
  const fieldsOf = (object: RawObject, name: string) =>
    containersOf(object).map((container) => container[name]);

  it('image: the digest replaces the tag, pull secrets go to every pod', () => {
    const digest = `sha256:${'0123456789abcdef'.repeat(4)}`;
    const image = { repository: 'r.example/a', tag: '1.2', pullSecrets: [{ name: 'key' }] };
    for (const [given, expected] of [
      [image, 'r.example/a:1.2'],
      [{ ...image, digest }, `r.example/a@${digest}`],
    ] as const) {
      const pods = renderChart({ image: given, dns: { enabled: true } }).filter(podOf);
      assert.deepEqual(
        pods.flatMap((pod) => fieldsOf(pod, 'image')),
        [expected, expected, expected],
      );
      for (const pod of pods) assert.deepEqual(podOf(pod)?.imagePullSecrets, image.pullSecrets);
    }
  });

  it('image.withoutIptables: another tag, neither the xtables lock nor NET_RAW, and mode nftables only', () => {
    const repository = 'r.example/a';
    const config = { mode: 'nftables' };
    const image = { repository, withoutIptables: true };
    const object = daemonSet({ image, config });
    const tags = fieldsOf(object, 'image').map((name) => String(name).replace(/.*:/, ''));
    const [tag] = fieldsOf(daemonSet({ image: { repository } }), 'image');
    const expected = `${String(tag).replace(/.*:/, '')}-nftables`;
    assert.deepEqual(tags, [expected, expected]);
    assert.doesNotMatch(JSON.stringify(object), /xtables|NET_RAW/);
    const [, agent] = containersOf(object);
    const { capabilities } = (agent?.securityContext ?? {}) as Fields;
    assert.deepEqual(capabilities, { drop: ['ALL'], add: ['NET_ADMIN'] });
    const given = daemonSet({ image: { ...image, tag: '1.2' }, config });
    assert.deepEqual(fieldsOf(given, 'image'), [`${repository}:1.2`, `${repository}:1.2`]);
    for (const mode of ['', 'iptables', 'ipvs', null]) {
      assert.throws(() => daemonSet({ image, config: { mode } }), /set config\.mode to nftables/);
    }
    daemonSet({ image, kubeProxyConfigMap: 'kube-proxy' });
  });

  const pod = {
    nodeSelector: { pool: 'a' },
    priorityClassName: 'high',
    tolerations: [{ key: 'gpu', operator: 'Exists' }],
  };
  const resources = { limits: { memory: '1Gi' } };

  it('pods have the given node selector, priority class, tolerations and resources', () => {
    for (const object of [
      daemonSet({ ...pod, resources }),
      deployment({ ...pod, resources: { ...resources, requests: null } }),
    ]) {
      const { nodeSelector, priorityClassName, tolerations } = podOf(object) ?? {};
      assert.deepEqual(
        { nodeSelector, priorityClassName, tolerations },
        { ...pod, nodeSelector: { 'kubernetes.io/os': 'linux', pool: 'a' } },
      );
      for (const each of fieldsOf(object, 'resources')) {
        assert.deepEqual((each as { limits: object }).limits, resources.limits);
      }
    }
  });

  it('extra flags follow the flags in the manifests', () => {
    for (const args of fieldsOf(daemonSet({ extraArgs: ['-v=3'] }), 'args')) {
      assert.equal((args as string[]).at(-1), '-v=3');
    }
    const [args] = fieldsOf(deployment({ extraArgs: ['--ttl=30'] }), 'args');
    assert.equal((args as string[]).at(-1), '--ttl=30');
  });

  it('the update strategy and the number of DNS servers are as given', () => {
    const updateStrategy = { type: 'OnDelete', rollingUpdate: null };
    assert.deepEqual((daemonSet({ updateStrategy }).spec as Fields).updateStrategy, {
      type: 'OnDelete',
    });
    assert.equal((deployment({ replicas: 3 }).spec as Fields).replicas, 3);
  });

  it('the configuration file has the given fields, and the chart its kubeconfig', () => {
    const config = {
      mode: 'ipvs',
      oomScoreAdj: null,
      clientConnection: { burst: 20 },
      ipvs: { strictARP: true, syncPeriod: '1m0s' },
      portwide: { networkPolicy: { fqdnResolvers: ['10.96.0.10'] } },
    };
    const { data } = find(renderChart({ config, apiServer: 'https://10.0.0.1:6443' }), 'ConfigMap');
    const files = data as Record<string, string>;
    const { problems, warnings } = readConfigFile(files['config.conf'] ?? '', 'config.conf');
    assert.deepEqual([problems, warnings], [[], []]);
    assert.deepEqual(parse(files['config.conf'] ?? ''), {
      apiVersion: 'kubeproxy.config.k8s.io/v1alpha1',
      kind: 'KubeProxyConfiguration',
      clusterCIDR: '',
      ...without(config, ['oomScoreAdj']),
      clientConnection: { burst: 20, kubeconfig: '/var/lib/portwide/kubeconfig.conf' },
    });
    const { clusters } = parse(files['kubeconfig.conf'] ?? '');
    assert.equal(clusters[0].cluster.server, 'https://10.0.0.1:6443');
  });

  it('the address of Service kube-dns is as given, and requires the DNS server', () => {
    const kubeDns = { enabled: true, clusterIP: '10.0.0.10' };
    const service = find(renderChart({ dns: { enabled: true, kubeDns } }), 'Service', 'kube-dns');
    assert.equal((service.spec as Fields).clusterIP, '10.0.0.10');
    assert.throws(() => renderChart({ dns: { kubeDns } }), /requires dns\.enabled/);
  });
});

describe('chart: monitoring', () => {
  const config = { metricsBindAddress: '0.0.0.0:10300' };

  it('a ServiceMonitor has a headless Service for the pods, with the port of the metrics', () => {
    const objects = renderChart({
      config,
      monitor: { kind: 'ServiceMonitor', interval: '15s', labels: { release: 'prometheus' } },
    });
    const service = find(objects, 'Service', 'portwide-metrics').spec as Fields;
    assert.deepEqual(service, {
      clusterIP: 'None',
      selector: podLabels(objects),
      ports: [{ name: 'metrics', port: 10300, targetPort: 10300 }],
    });
    const { metadata, spec } = find(objects, 'ServiceMonitor');
    assert.equal((metadata as unknown as { labels: Fields }).labels.release, 'prometheus');
    const { endpoints, ...rest } = spec as { endpoints: Fields[] };
    assert.deepEqual(rest, { jobLabel: 'k8s-app', selector: { matchLabels: podLabels(objects) } });
    // Alerts then name the node instead of its address.
    const relabelings = [
      { sourceLabels: ['__meta_kubernetes_pod_node_name'], targetLabel: 'instance' },
    ];
    assert.deepEqual(endpoints, [{ port: 'metrics', interval: '15s', relabelings }]);
    // The alerts select this job.
    assert.equal(podLabels(objects)['k8s-app'], 'portwide');
  });

  it('a PodMonitor names a port of the agent', () => {
    const objects = renderChart({ config, monitor: { kind: 'PodMonitor' } });
    const [init, agent] = containersOf(find(objects, 'DaemonSet'));
    const ports = [{ name: 'metrics', containerPort: 10300 }];
    assert.deepEqual([init?.ports, agent?.ports], [undefined, ports]);
    const { podMetricsEndpoints } = find(objects, 'PodMonitor').spec as Record<string, Fields[]>;
    assert.deepEqual(
      podMetricsEndpoints?.map(({ port }) => port),
      ['metrics'],
    );
  });

  it('monitors are refused while metrics are on 127.0.0.1 only', () => {
    const monitor = { kind: 'PodMonitor' };
    assert.throws(() => renderChart({ monitor }), /set config\.metricsBindAddress/);
    renderChart({ monitor, kubeProxyConfigMap: 'kube-proxy' });
  });

  it('the PrometheusRule has the alerts, with runbooks at the given address', () => {
    const text = readText('deploy/monitoring/alerts.yaml');
    const rule = (values: Fields) =>
      find(renderChart({ prometheusRule: { enabled: true, ...values } }), 'PrometheusRule').spec;
    assert.deepEqual(rule({}), parse(text));
    const docsUrl = 'https://wiki.example/portwide';
    const expected = text.replaceAll('https://portwide.invalid/docs', docsUrl);
    assert.notEqual(expected, text);
    assert.deepEqual(rule({ docsUrl }), parse(expected));
  });

  it("the dashboard has the label of Grafana's sidecar", () => {
    const { metadata, data } = find(
      renderChart({ dashboard: { enabled: true } }),
      'ConfigMap',
      'portwide-dashboard',
    );
    assert.equal((metadata as unknown as { labels: Fields }).labels.grafana_dashboard, '1');
    assert.deepEqual(data, { 'portwide.json': readText('deploy/monitoring/dashboard.json') });
  });

  function podLabels(objects: readonly RawObject[]): Fields {
    const { template } = find(objects, 'DaemonSet').spec as { template: { metadata: Fields } };
    return template.metadata.labels as Fields;
  }
});

describe('chart: every object', () => {
  it('matches the schemas of Kubernetes', async () => {
    const objects = renderChart({
      image: { pullSecrets: [{ name: 'key' }] },
      config: { metricsBindAddress: '0.0.0.0:10249' },
      networkPolicy: { enabled: true, adminNetworkPolicyCrds: true },
      dns: { enabled: true, kubeDns: { enabled: true } },
      admission: { allPorts: true, nodePorts: true },
      monitor: { kind: 'ServiceMonitor' },
      dashboard: { enabled: true },
    });
    const ofKubernetes = objects.filter(({ kind }) => kind !== 'ServiceMonitor');
    assert.equal(ofKubernetes.length, 25);
    for (const object of ofKubernetes) assert.deepEqual(await schemaFaults(object), []);
  });

  it('the notes warn about the placeholder of the API server', () => {
    assert.match(renderNotes(), /apiServer is still the placeholder/);
    assert.doesNotMatch(renderNotes({ apiServer: 'https://10.0.0.1:6443' }), /placeholder/);
    assert.doesNotMatch(renderNotes({ kubeProxyConfigMap: 'kube-proxy' }), /placeholder/);
  });
});
