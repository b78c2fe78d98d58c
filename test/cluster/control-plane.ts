/** etcd, kube-apiserver, kube-controller-manager and kube-scheduler. */
import { join } from 'node:path';
import { CONTROL_ADDRESS, type Layout, SERVICE_CIDR } from './layout.ts';
import { run, type Step, start, until } from './steps.ts';

const ETCD = 'http://127.0.0.1:2379';

export function controlPlaneSteps({ directory }: Layout): Step[] {
  const pki = (name: string) => join(directory, 'pki', name);
  const kubeconfig = (name: string) => `--kubeconfig=${join(directory, `${name}.kubeconfig`)}`;
  return [
    start(
      'control',
      'etcd',
      'etcd',
      `--data-dir=${join(directory, 'etcd')}`,
      `--listen-client-urls=${ETCD}`,
      `--advertise-client-urls=${ETCD}`,
    ),
    start(
      'control',
      'kube-apiserver',
      'kube-apiserver',
      `--etcd-servers=${ETCD}`,
      `--advertise-address=${CONTROL_ADDRESS}`,
      `--service-cluster-ip-range=${SERVICE_CIDR}`,
      '--allow-privileged',
      '--authorization-mode=Node,RBAC',
      `--client-ca-file=${pki('ca.crt')}`,
      `--tls-cert-file=${pki('apiserver.crt')}`,
      `--tls-private-key-file=${pki('apiserver.key')}`,
      `--kubelet-certificate-authority=${pki('ca.crt')}`,
      `--kubelet-client-certificate=${pki('apiserver-kubelet-client.crt')}`,
      `--kubelet-client-key=${pki('apiserver-kubelet-client.key')}`,
      '--kubelet-preferred-address-types=InternalIP',
      '--service-account-issuer=https://kubernetes.default.svc',
      `--service-account-key-file=${pki('service-accounts.pub')}`,
      `--service-account-signing-key-file=${pki('service-accounts.key')}`,
    ),
    until('control', 'kubectl', kubeconfig('admin'), 'get', '--raw=/readyz'),
    start(
      'control',
      'kube-controller-manager',
      'kube-controller-manager',
      kubeconfig('controller-manager'),
      '--leader-elect=false',
      `--root-ca-file=${pki('ca.crt')}`,
      `--service-account-private-key-file=${pki('service-accounts.key')}`,
    ),
    start(
      'control',
      'kube-scheduler',
      'kube-scheduler',
      kubeconfig('scheduler'),
      '--leader-elect=false',
    ),
  ];
}

/** Waits for the nodes, and gives Portwide the rights that its manifests ask for. */
export function readySteps({ directory, nodes }: Layout, deploy: string): Step[] {
  const kubectl = ['kubectl', `--kubeconfig=${join(directory, 'admin.kubeconfig')}`] as const;
  return [
    ...nodes.map(({ name }) => until('control', ...kubectl, 'get', 'node', name)),
    run('control', ...kubectl, 'wait', '--for=condition=Ready', 'node', '--all', '--timeout=180s'),
    ...['base', 'network-policy'].map((part) =>
      run('control', ...kubectl, 'apply', '-f', join(deploy, part, 'rbac.yaml')),
    ),
  ];
}
