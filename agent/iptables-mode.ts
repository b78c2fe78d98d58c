/** Proxy mode iptables: node support, options and backends. */
import type { Logger } from 'pino';
import type { IpFamily } from '../api/objects.ts';
import type { NodeOptions, RunOptions } from '../config/settings.ts';
import { type IptablesOptions, iptablesBackend } from '../iptables/backend.ts';
import { trafficOptions } from '../traffic/options.ts';
import type { SupportedMode } from './mode.ts';
import {
  allowLocalhostNodePorts,
  dropsInvalid,
  hasRandomFully,
  usableIptables,
} from './node-setup.ts';

/** Opens proxy mode iptables. @throws UserError if no IP family is supported. */
export async function openIptablesMode(options: RunOptions, log: Logger): Promise<SupportedMode> {
  const commands = await usableIptables(options, log, true);
  return {
    families: commands.map(({ family }) => family),
    start: async (podCidrs, _monitor, takeover) => {
      const dropInvalid = await dropsInvalid();
      const backends = commands.map(async (iptables) => {
        const { family } = iptables;
        const traits = {
          dropInvalid,
          randomFully: hasRandomFully(await iptables.version()),
          onWarning: (details: object, message: string) =>
            log.warn({ family, ...details }, message),
        };
        return iptablesBackend(iptables, iptablesOptions(options, family, podCidrs, traits));
      });
      return {
        backends: await Promise.all(backends),
        minSyncPeriod: options.iptablesMinSyncPeriod,
        resetsTcp: options.resetDeletedEndpointConnections,
        localhostProxyFamilies: [],
        afterFirstRules: async (family) => {
          if (family === 'IPv4') await allowLocalhostNodePorts(options, log);
        },
        afterFirstSync: (family) => void takeover.afterFirstSync(family),
      };
    },
  };
}

/** The options of mode iptables for an IP family. */
export function iptablesOptions(
  options: NodeOptions,
  family: IpFamily,
  podCidrs: readonly string[],
  traits: Pick<IptablesOptions, 'dropInvalid' | 'randomFully' | 'onWarning'>,
): IptablesOptions {
  return {
    ...traits,
    ...trafficOptions(options, family, podCidrs),
    masqueradeBit: options.iptablesMasqueradeBit,
    localhostNodePorts: family === 'IPv4' && options.iptablesLocalhostNodeports,
  };
}
