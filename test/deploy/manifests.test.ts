import assert from 'node:assert/strict';
import { existsSync, globSync } from 'node:fs';
import { dirname, join, normalize } from 'node:path';
import { parse, parseAllDocuments, visit } from 'yaml';
import { configure } from '../../config/configure.ts';
import { ALL_SETTINGS } from '../../config/settings.ts';
import { type RawObject, ROOT, readObject, readObjects, readText, yamlFiles } from './manifests.ts';
import { schemaFaults, unknownFields } from './schema.ts';

/** Not Kubernetes objects; checked elsewhere. */
const isObjects = (path: string) =>
  !path.endsWith('/kustomization.yaml') && !/^deploy\/(krew|monitoring)\//.test(path);
/** Patches of objects of the base, which has the omitted fields. */
const isPatch = (path: string) => path.startsWith('deploy/kubeadm/');

interface Mount {
  readonly name: string;
  readonly mountPath: string;
}

interface Container {
  readonly name: string;
  readonly args: readonly string[];
  readonly securityContext: Record<string, unknown>;
  readonly volumeMounts: readonly Mount[];
  readonly livenessProbe: Probe;
  readonly readinessProbe: Probe;
  readonly startupProbe?: Probe;
}

interface Probe {
  readonly httpGet: { readonly path: string; readonly port: number };
  readonly initialDelaySeconds?: number;
  readonly periodSeconds: number;
}

interface PodSpec {
  readonly serviceAccountName: string;
  readonly initContainers: readonly [Container];
  readonly containers: readonly [Container];
  readonly volumes: readonly {
    readonly name: string;
    readonly hostPath?: { readonly path: string };
    readonly emptyDir?: { readonly medium: string; readonly sizeLimit: string };
    readonly configMap?: { readonly name: string };
  }[];
}

interface DaemonSet {
  readonly spec: {
    readonly selector: { readonly matchLabels: object };
    readonly template: { readonly metadata: { readonly labels: object }; readonly spec: PodSpec };
  };
}

const daemonSet = readObject<DaemonSet>('deploy/base/daemonset.yaml', 'DaemonSet');
const pod = daemonSet.spec.template.spec;
const configMap = readObject<{ data: Record<string, string> }>(
  'deploy/base/config.yaml',
  'ConfigMap',
);

/**
 * The available schemas no longer have v1beta1. admission.test.ts compares the file with the v1
 * version.
 */
const isOfOldVersion = (path: string) => path.endsWith('-v1beta1.yaml');

describe('manifests: files under deploy/ match the Kubernetes schemas', () => {
  const whole = yamlFiles().filter(
    (path) => isObjects(path) && !isPatch(path) && !isOfOldVersion(path),
  );
  for (const path of whole) {
    for (const object of readObjects(path)) {
      it(`${path}: ${object.kind} ${object.metadata.name}`, async () => {
        assert.deepEqual(await schemaFaults(object), []);
      });
    }
  }

  for (const path of yamlFiles().filter((each) => isObjects(each) && isPatch(each))) {
    for (const { $patch, ...object } of readObjects(path)) {
      it(`${path}: ${$patch ?? 'patch'} of ${object.kind} ${object.metadata.name}`, () => {
        assert.deepEqual(unknownFields(object as unknown as RawObject), []);
        const { kind, metadata } = object;
        assert.ok(
          globSync('deploy/base/*.yaml', { cwd: ROOT })
            .filter(isObjects)
            .flatMap(readObjects)
            .some((base) => base.kind === kind && base.metadata.name === metadata.name),
        );
      });
    }
  }

  it('the schemas detect invalid objects', async () => {
    const faultsOf = (change: (object: Record<string, never>) => void) => {
      const object = structuredClone(daemonSet) as unknown as Record<string, never>;
      change(object);
      return schemaFaults(object as unknown as RawObject);
    };
    const container = (object: Record<string, never>): Record<string, unknown> =>
      (object as unknown as DaemonSet).spec.template.spec.containers[0] as never;
    const unknown = await faultsOf((object) =>
      Object.assign(container(object), { volumeMount: [] }),
    );
    assert.match(unknown.join(), /containers\[0\]\.volumeMount is not a field/);
    const type = await faultsOf((object) => Object.assign(container(object), { args: '--config' }));
    assert.match(type.join(), /args must be array/);
    const missing = await faultsOf((object) => delete container(object).name);
    assert.match(missing.join(), /must have required property.*name/);
    const kind = await schemaFaults({ ...daemonSet, kind: 'DeamonSet' } as RawObject);
    assert.match(kind.join(), /is not a Kubernetes kind/);
  });
});

describe('manifests: a second `kubectl apply` changes nothing', () => {
  const policies = yamlFiles()
    .filter(isObjects)
    .flatMap((path) => readObjects(path).map((object) => ({ path, object })))
    .filter(({ object }) => object.kind.endsWith('AdmissionPolicy'));

  for (const { path, object } of policies) {
    it(`${path} sets the API server's defaults`, () => {
      const { failurePolicy, matchConstraints } = object.spec as {
        failurePolicy?: string;
        matchConstraints: { resourceRules: readonly object[] };
      };
      assert.ok(failurePolicy !== undefined);
      const { resourceRules, ...rest } = matchConstraints;
      const defaults = { matchPolicy: 'Equivalent', namespaceSelector: {}, objectSelector: {} };
      assert.deepEqual(rest, defaults);
      for (const rule of resourceRules) assert.deepEqual(Object(rule).scope, '*');
    });
  }

  it('no folded block scalar keeps line breaks, which kustomize would double', () => {
    for (const path of yamlFiles().filter(isObjects)) {
      for (const document of parseAllDocuments(readText(path))) {
        visit(document, {
          Scalar(_, { type, value }) {
            const isBroken = type === 'BLOCK_FOLDED' && String(value).includes('\n');
            assert.ok(!isBroken, `${path}: ${value}`);
          },
        });
      }
    }
  });
});

describe('manifests: kustomizations', () => {
  interface Kustomization {
    readonly resources: readonly string[];
    readonly patches?: readonly { readonly path?: string; readonly patch?: string }[];
    readonly images?: readonly { readonly name: string }[];
  }
  const kustomizations = new Map(
    yamlFiles()
      .filter((path) => path.endsWith('/kustomization.yaml'))
      .map((path) => [path, parse(readText(path)) as Kustomization]),
  );
  const listed = new Set<string>();
  for (const [path, { resources, patches = [] }] of kustomizations) {
    for (const entry of [...resources, ...patches.flatMap(({ path: file }) => file ?? [])]) {
      listed.add(normalize(join(dirname(path), entry)));
    }
  }

  it('kustomizations refer to existing files and folders', () => {
    for (const path of listed) {
      const file = path.endsWith('.yaml') ? path : `${path}/kustomization.yaml`;
      assert.ok(existsSync(join(ROOT, file)), file);
    }
  });

  it('kustomizations include every manifest, except the optional one in two versions', () => {
    const objects = yamlFiles().filter(isObjects);
    const unlisted = objects.filter((path) => !listed.has(path));
    assert.deepEqual(unlisted, [
      'deploy/admission-node-ports-v1beta1.yaml',
      'deploy/admission-node-ports.yaml',
    ]);
  });

  it('kustomizations set the image of the containers', () => {
    const images = kustomizations.get('deploy/base/kustomization.yaml')?.images ?? [];
    for (const container of [...pod.initContainers, ...pod.containers]) {
      assert.ok(
        images.some(({ name }) => name === (container as unknown as { image: string }).image),
      );
    }
  });
});

describe('manifests: component network-policy', () => {
  it('gives the flag to the agent only, not to the init container', () => {
    const { patches } = parse(readText('deploy/network-policy/kustomization.yaml'));
    const operations = parse(patches[0].patch);
    const container = '/spec/template/spec/containers/0';
    assert.deepEqual(operations, [
      { op: 'test', path: `${container}/name`, value: pod.containers[0].name },
      { op: 'add', path: `${container}/args/-`, value: '--network-policy' },
    ]);
    assert.ok(ALL_SETTINGS.networkPolicy.overridesFile, 'the DaemonSet has --config');
  });
});

describe('manifests: DaemonSet', () => {
  const [init] = pod.initContainers;
  const [agent] = pod.containers;

  it('selects its own pods, and uses the existing account and configuration', () => {
    const { selector, template } = daemonSet.spec;
    assert.deepEqual(template.metadata.labels, selector.matchLabels);
    const account = readObject('deploy/base/rbac.yaml', 'ServiceAccount');
    assert.equal(pod.serviceAccountName, account.metadata.name);
    assert.ok(pod.volumes.some((volume) => volume.configMap?.name === configMap.metadata.name));
    for (const { metadata } of [daemonSet, account, configMap]) {
      assert.equal(metadata.namespace, 'kube-system');
    }
  });

  it('binds its role to its account', () => {
    const role = readObject('deploy/base/rbac.yaml', 'ClusterRole');
    const binding = readObject<{ roleRef: { name: string }; subjects: object[] }>(
      'deploy/base/rbac.yaml',
      'ClusterRoleBinding',
    );
    assert.equal(binding.roleRef.name, role.metadata.name);
    assert.deepEqual(binding.subjects, [
      { kind: 'ServiceAccount', name: pod.serviceAccountName, namespace: 'kube-system' },
    ]);
  });

  it("gives the agent two capabilities, and of the host's files only the lock", () => {
    assert.deepEqual(agent.securityContext, {
      runAsUser: 0,
      allowPrivilegeEscalation: false,
      readOnlyRootFilesystem: true,
      seccompProfile: { type: 'RuntimeDefault' },
      seLinuxOptions: { type: 'spc_t' },
      capabilities: { drop: ['ALL'], add: ['NET_ADMIN', 'NET_RAW'] },
    });
    const hostPaths = (container: Container) =>
      container.volumeMounts.flatMap(
        ({ name }) => pod.volumes.find((volume) => volume.name === name)?.hostPath?.path ?? [],
      );
    // Both write rules.
    for (const container of [agent, init]) {
      assert.deepEqual(hostPaths(container), ['/run/xtables.lock']);
    }
    // The socket of the status API.
    const { name } =
      agent.volumeMounts.find(({ mountPath }) => mountPath === '/run/portwide') ?? {};
    const volume = pod.volumes.find((each) => each.name === name);
    assert.deepEqual(volume?.emptyDir, { medium: 'Memory', sizeLimit: '1Mi' });
    assert.ok(init.args.includes('--init-only'));
    assert.equal(init.securityContext.readOnlyRootFilesystem, true);
  });

  it('is ready once its rules are written, and does not restart while the API server is unavailable', () => {
    const { livenessProbe, readinessProbe, startupProbe } = agent;
    const port = configure({}).options.healthzBindAddress?.port;
    assert.deepEqual(readinessProbe.httpGet, { path: '/healthz', port });
    assert.equal(readinessProbe.initialDelaySeconds, undefined);
    assert.ok(readinessProbe.periodSeconds <= 2);
    assert.deepEqual(livenessProbe.httpGet, { path: '/livez', port });
    assert.equal(startupProbe, undefined, 'the kubelet would restart it');
  });

  it('mounts the files that its arguments and configuration name', () => {
    const config = parse(configMap.data['config.conf'] ?? '');
    assert.equal(config.apiVersion, 'kubeproxy.config.k8s.io/v1alpha1');
    assert.equal(config.kind, 'KubeProxyConfiguration');
    for (const { args, volumeMounts } of [init, agent]) {
      const mount = volumeMounts.find(({ name }) => name === 'config')?.mountPath;
      assert.ok(args.includes(`--config=${mount}/config.conf`));
      assert.equal(config.clientConnection.kubeconfig, `${mount}/kubeconfig.conf`);
      assert.ok(args.includes('--hostname-override=$(NODE_NAME)'));
    }
  });

  it("has a kubeconfig with the pod's service account", () => {
    const {
      clusters,
      users,
      contexts,
      'current-context': current,
    } = parse(configMap.data['kubeconfig.conf'] ?? '');
    const account = '/var/run/secrets/kubernetes.io/serviceaccount';
    const { cluster, user } = contexts.find(
      ({ name }: { name: string }) => name === current,
    ).context;
    assert.deepEqual(clusters, [
      {
        name: cluster,
        cluster: {
          server: 'https://api-server.invalid:6443',
          'certificate-authority': `${account}/ca.crt`,
        },
      },
    ]);
    assert.deepEqual(users, [{ name: user, user: { tokenFile: `${account}/token` } }]);
  });
});
