/** Flags that choose an action. They have no field in the configuration file. */

import { setting } from './setting.ts';
import { boolean, filePath, optional, wholeNumber } from './value-types.ts';

const group = 'command';
const port = wholeNumber(0, 65535, '<port>');

export const COMMAND_SETTINGS = {
  config: setting(group, {
    type: optional(filePath),
    default: undefined,
    overridesFile: true,
    help: 'KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1) in YAML or JSON; with it, most flags are ignored',
  }),
  writeConfigTo: setting(group, {
    type: optional(filePath),
    default: undefined,
    overridesFile: true,
    help: 'write the complete configuration, with defaults, to this file and exit',
  }),
  cleanup: setting(group, {
    type: boolean,
    default: false,
    overridesFile: true,
    help: 'remove everything that Portwide and kube-proxy put on this node and exit',
    details: 'Same as `portwide cleanup`.',
  }),
  initOnly: setting(group, {
    type: boolean,
    default: false,
    overridesFile: true,
    help: 'set what CAP_NET_ADMIN does not allow (sysctls, conntrack limits) and exit',
    details:
      'For an init container. It writes no rules except those of `KUBE-FIREWALL`, before it enables node ports on 127.0.0.1: they keep neighbours from 127.0.0.1 (CVE-2020-8558).',
  }),
  healthzPort: setting('servers', {
    type: port,
    default: 10256,
    help: 'deprecated: port of /healthz if --healthz-bind-address has none; 0: not served',
  }),
  metricsPort: setting('servers', {
    type: port,
    default: 10249,
    help: 'deprecated: port of /metrics if --metrics-bind-address has none; 0: not served',
  }),
};
