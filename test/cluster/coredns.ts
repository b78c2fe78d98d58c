/** CoreDNS as a Deployment, for runs whose images include it. */
import { join } from 'node:path';
import { DNS_ADDRESS, type Layout } from './layout.ts';
import { file, run, type Step } from './steps.ts';

export function corednsSteps({ directory }: Layout, image: string): Step[] {
  const path = join(directory, 'coredns.yaml');
  const admin = `--kubeconfig=${join(directory, 'admin.kubeconfig')}`;
  return [file(path, objects(image)), run('control', 'kubectl', admin, 'apply', '-f', path)];
}

function objects(image: string): string {
  return `apiVersion: v1
kind: ServiceAccount
metadata: {name: coredns, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: coredns}
# Reads Services, EndpointSlices, namespaces and pods.
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
subjects: [{kind: ServiceAccount, name: coredns, namespace: kube-system}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: coredns, namespace: kube-system}
data:
  Corefile: |
    .:53 {
      errors
      ready
      kubernetes cluster.local in-addr.arpa ip6.arpa {
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
      }
      cache 30
    }
---
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system, labels: {k8s-app: kube-dns}}
spec:
  selector: {k8s-app: kube-dns}
  clusterIP: ${DNS_ADDRESS}
  ports:
    - {name: dns, port: 53, protocol: UDP}
    - {name: dns-tcp, port: 53, protocol: TCP}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: coredns, namespace: kube-system}
spec:
  selector: {matchLabels: {k8s-app: kube-dns}}
  template:
    metadata: {labels: {k8s-app: kube-dns}}
    spec:
      serviceAccountName: coredns
      volumes: [{name: config, configMap: {name: coredns}}]
      containers:
        - name: coredns
          image: "${image}"
          args: [-conf, /etc/coredns/Corefile]
          volumeMounts: [{name: config, mountPath: /etc/coredns}]
          readinessProbe: {httpGet: {path: /ready, port: 8181}}
`;
}
