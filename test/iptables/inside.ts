/** Functions of mode iptables that tests call inside a network namespace. */
import type { IpFamily } from '../../api/objects.ts';
import { iptablesBackend } from '../../iptables/backend.ts';
import { iptablesCommands, type Variant } from '../../iptables/commands.ts';
import { chainNames } from '../../iptables/variant.ts';
import type { Backend } from '../../proxier/backend.ts';
import type { Comparison } from '../../proxier/compared-object.ts';
import type { Route } from '../../services/route.ts';
import { options } from './options.ts';

let backend: Backend | undefined;

function started(): Backend {
  if (backend === undefined) throw new Error('no agent');
  return backend;
}

export const iptablesMode = {
  /** Starts an agent that has written these Routes. */
  async iptablesStart(variant: Variant, routes: readonly Route[]): Promise<void> {
    const commands = iptablesCommands('IPv4', variant);
    backend = iptablesBackend(commands, {
      ...options(),
      nodePortSelection: ['all'],
      onWarning: () => {},
    });
    backend.update(routes, []);
    await backend.apply(true);
  },

  async iptablesChainNames(family: IpFamily, variant: Variant): Promise<[string, string[]][]> {
    const chains = [...(await chainNames(family, variant))];
    return chains.map(([table, names]) => [table, [...names]]);
  },

  async iptablesCompare(service?: string): Promise<Comparison | undefined> {
    return await started().compare?.(service);
  },
};
