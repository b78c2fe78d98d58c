/** Flags that are no options of the running agent: `--config`, actions, and deprecated ports. */

import { setting } from './setting.ts';
import { boolean, filePath, optional, wholeNumber } from './value-types.ts';

const group = 'command';
const port = wholeNumber(0, 65535, '<port>');

export const COMMAND_SETTINGS = {
  config: setting(group, {
    type: optional(filePath),
    default: undefined,
    overridesFile: true,
    help: 'configuration file: a KubeProxyConfiguration in YAML or JSON; most flags are then ignored',
  }),
  writeConfigTo: setting(group, {
    type: optional(filePath),
    default: undefined,
    overridesFile: true,
    help: 'write the complete configuration, defaults included, to this file and exit',
  }),
  cleanup: setting(group, {
    type: boolean,
    default: false,
    overridesFile: true,
    help: 'remove all rules and other state of Portwide and kube-proxy from this node and exit',
    details: 'Same as `portwide cleanup`.',
  }),
  initOnly: setting(group, {
    type: boolean,
    default: false,
    overridesFile: true,
    help: 'do the setup that needs more than CAP_NET_ADMIN (sysctls, conntrack limits) and exit',
    details: 'For an init container. Writes no rules except `KUBE-FIREWALL`.',
  }),
  healthzPort: setting('servers', {
    type: port,
    default: 10256,
    help: 'deprecated: port for a --healthz-bind-address without a port, otherwise unused; 0: disabled',
  }),
  metricsPort: setting('servers', {
    type: port,
    default: 10249,
    help: 'deprecated: port for a --metrics-bind-address without a port, otherwise unused; 0: disabled',
  }),
};
