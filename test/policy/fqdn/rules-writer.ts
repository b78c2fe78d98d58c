/** Writes and removes the DNS queue rules in a network namespace. */
import type { IpFamily } from '../../../api/objects.ts';
import { iptablesCommands, type Variant } from '../../../iptables/commands.ts';
import { removeDnsRules, syncDnsRules } from '../../../policy/fqdn/dns-queue-rules.ts';
import { serveCalls } from '../../child.ts';

const functions = {
  write: (variant: Variant, family: IpFamily, resolvers: readonly string[], queue: number) =>
    syncDnsRules(iptablesCommands(family, variant), resolvers, queue),
  remove: (variant: Variant, family: IpFamily) => removeDnsRules(iptablesCommands(family, variant)),
};

export type WriterFunctions = typeof functions;

serveCalls(functions);
