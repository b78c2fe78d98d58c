import assert from 'node:assert/strict';
import { parse } from 'yaml';
import { configureDns } from '../../config/configure-dns.ts';
import type { FlagTexts } from '../../config/flags.ts';
import { readObject, readText } from './manifests.ts';

type Labels = Readonly<Record<string, string>>;

interface Container {
  readonly image: string;
  readonly args: readonly string[];
  readonly ports: readonly {
    readonly name: string;
    readonly containerPort: number;
    readonly protocol: string;
  }[];
  readonly securityContext: object;
  readonly livenessProbe: { readonly httpGet: object };
  readonly readinessProbe: { readonly httpGet: object };
}

interface Deployment {
  readonly spec: {
    readonly selector: { readonly matchLabels: Labels };
    readonly template: {
      readonly metadata: { readonly labels: Labels };
      readonly spec: {
        readonly serviceAccountName: string;
        readonly dnsPolicy: string;
        readonly terminationGracePeriodSeconds: number;
        readonly securityContext: { readonly sysctls: readonly object[] };
        readonly topologySpreadConstraints: readonly {
          readonly labelSelector: { readonly matchLabels: Labels };
        }[];
        readonly containers: readonly [Container];
      };
    };
  };
}

interface Service {
  readonly spec: {
    readonly selector: Labels;
    readonly ports: readonly {
      readonly name: string;
      readonly port: number;
      readonly protocol: string;
      readonly targetPort: string;
    }[];
  };
  readonly metadata: { readonly name: string; readonly annotations: Labels };
}

const { spec } = readObject<Deployment>('deploy/dns/deployment.yaml', 'Deployment');
const pod = spec.template.spec;
const [container] = pod.containers;
const labels = spec.template.metadata.labels;
const services = ['deploy/dns/service.yaml', 'deploy/kube-dns/service.yaml'].map((path) =>
  readObject<Service>(path, 'Service'),
);

function options() {
  const [command, ...flags] = container.args;
  assert.equal(command, 'dns');
  const texts: FlagTexts = Object.fromEntries(
    flags.map((flag) => {
      const [, name = '', value = ''] = /^--([a-z-]+)=(.*)$/.exec(flag) ?? assert.fail(flag);
      return [name.replaceAll(/-(.)/g, (_, letter) => letter.toUpperCase()), value];
    }),
  );
  return configureDns(texts);
}

describe('dns: manifests of the DNS server', () => {
  it('Services and disruption budget select only the pods of their own Deployment', () => {
    const budget = readObject<{ spec: { selector: { matchLabels: Labels } } }>(
      'deploy/dns/disruption-budget.yaml',
      'PodDisruptionBudget',
    );
    const selectors = [
      spec.selector.matchLabels,
      budget.spec.selector.matchLabels,
      ...services.map((service) => service.spec.selector),
      ...pod.topologySpreadConstraints.map(({ labelSelector }) => labelSelector.matchLabels),
    ];
    for (const selector of selectors) assert.deepEqual(selector, labels);
    assert.notDeepEqual(labels, { 'k8s-app': 'portwide' });
  });

  it('the Deployment has valid flags, and declares the ports of the server', () => {
    const { port, metricsBindAddress, forward } = options();
    assert.deepEqual(
      container.ports.map(({ containerPort, protocol }) => `${containerPort}/${protocol}`),
      [`${port}/UDP`, `${port}/TCP`, `${metricsBindAddress?.port}/TCP`],
    );
    // The node's, because the pod's own would cause a loop.
    assert.deepEqual([forward, pod.dnsPolicy], [[{ file: '/etc/resolv.conf' }], 'Default']);
    const startsAt = { name: 'net.ipv4.ip_unprivileged_port_start', value: String(port) };
    assert.deepEqual(pod.securityContext.sysctls, [startsAt]);
  });

  it('the Services map the ports of DNS and metrics, with the port names of kube-dns', () => {
    for (const service of services) {
      for (const { targetPort, port, protocol } of service.spec.ports) {
        const target = container.ports.find(({ name }) => name === targetPort);
        assert.deepEqual([target?.containerPort, target?.protocol], [port, protocol]);
      }
      assert.deepEqual(
        service.spec.ports.map(({ name, port, protocol }) => `${name} ${port}/${protocol}`),
        ['dns 53/UDP', 'dns-tcp 53/TCP', 'metrics 9153/TCP'],
      );
      const { annotations } = service.metadata;
      assert.deepEqual(annotations, {
        'prometheus.io/scrape': 'true',
        'prometheus.io/port': '9153',
      });
    }
  });

  it('the manifests do not change Service kube-dns unless deploy/kube-dns is applied', () => {
    assert.deepEqual(
      services.map(({ metadata }) => metadata.name),
      ['portwide-dns', 'kube-dns'],
    );
    const { resources } = parse(readText('deploy/kustomization.yaml'));
    assert.ok(!JSON.stringify(resources).includes('dns'));
  });

  it('the termination grace period is longer than the server needs', () => {
    const { lameduck } = options();
    assert.ok(pod.terminationGracePeriodSeconds * 1000 > lameduck + 6000);
  });

  it('the pods satisfy the Pod Security profile "restricted"', () => {
    const { sysctls: _, ...own } = pod.securityContext;
    assert.deepEqual(own, {
      runAsNonRoot: true,
      runAsUser: 65532,
      runAsGroup: 65532,
      seccompProfile: { type: 'RuntimeDefault' },
    });
    assert.deepEqual(container.securityContext, {
      allowPrivilegeEscalation: false,
      readOnlyRootFilesystem: true,
      capabilities: { drop: ['ALL'] },
    });
  });

  it('the container runs as the user with prepared code in the image', () => {
    assert.match(readText('Containerfile'), /setpriv --reuid=65532 .*portwide dns /);
  });

  it('the probes name paths and ports that the server serves', () => {
    assert.deepEqual(container.livenessProbe.httpGet, { path: '/healthz', port: 'metrics' });
    assert.deepEqual(container.readinessProbe.httpGet, { path: '/readyz', port: 'metrics' });
  });

  it('the role is bound to the service account, and the image is set', () => {
    const path = 'deploy/dns/rbac.yaml';
    const account = readObject(path, 'ServiceAccount').metadata;
    const binding = readObject<{ roleRef: { name: string }; subjects: object[] }>(
      path,
      'ClusterRoleBinding',
    );
    assert.equal(pod.serviceAccountName, account.name);
    assert.equal(binding.roleRef.name, readObject(path, 'ClusterRole').metadata.name);
    assert.deepEqual(binding.subjects, [
      { kind: 'ServiceAccount', name: account.name, namespace: 'kube-system' },
    ]);
    const { images } = parse(readText('deploy/dns/kustomization.yaml'));
    assert.ok(images.some(({ name }: { name: string }) => name === container.image));
  });
});
