/** Services and destinations of IPVS, and changes of them. */
import type { IpFamily, Protocol } from '../../api/objects.ts';

/** What a service is known by. */
export type IpvsServiceKey = { readonly family: IpFamily } & (
  | {
      readonly kind: 'address';
      readonly protocol: Protocol;
      /** Canonical text, of the same family. */
      readonly address: string;
      readonly port: number;
    }
  | {
      readonly kind: 'mark';
      /** The whole mark of the packets, 32 bits; never 0. */
      readonly mark: number;
    }
);

export interface IpvsServiceConfig {
  /** As in the name of its module, `ip_vs_<scheduler>`; at most 15 characters. */
  readonly scheduler: string;
  /**
   * IP_VS_SVC_F_SCHED1 to 3 (8, 16, 32), whose meaning is the scheduler's; 0 for none. As it is
   * listed, a service that another program made may have IP_VS_SVC_F_ONEPACKET (4) here.
   */
  readonly schedulerFlags: number;
  /** How long a client stays on its destination; 0 for no persistence. Every address is a client. */
  readonly persistenceSeconds: number;
}

export interface IpvsService extends IpvsServiceConfig {
  readonly key: IpvsServiceKey;
}

/** What a destination is known by within its service. */
export interface IpvsDestinationKey {
  /** Canonical text, of the family of the service. */
  readonly address: string;
  /** 0: packets keep theirs. */
  readonly port: number;
}

export interface IpvsDestination extends IpvsDestinationKey {
  /** 0: no new connections. */
  readonly weight: number;
}

export interface IpvsDestinationState extends IpvsDestination {
  /** The forwarding method is NAT, which is the only one that `IpvsChange` makes. */
  readonly masquerade: boolean;
  readonly activeConnections: number;
  readonly inactiveConnections: number;
  /** Templates of persistence, by which clients are still bound to it. */
  readonly persistentConnections: number;
}

/** One change of the table. To edit is to replace all that is not of the key. */
export type IpvsChange =
  | {
      readonly op: 'add-service' | 'edit-service';
      readonly key: IpvsServiceKey;
      readonly config: IpvsServiceConfig;
    }
  | { readonly op: 'delete-service'; readonly key: IpvsServiceKey }
  | {
      readonly op: 'add-destination' | 'edit-destination';
      readonly key: IpvsServiceKey;
      readonly destination: IpvsDestination;
    }
  | {
      readonly op: 'delete-destination';
      readonly key: IpvsServiceKey;
      readonly destination: IpvsDestinationKey;
    };

/** Seconds after which idle connections are forgotten. */
export interface IpvsTimeouts {
  readonly tcp: number;
  /** After a FIN. */
  readonly tcpFin: number;
  readonly udp: number;
}
