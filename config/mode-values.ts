/** Values of settings that the backends take as they are. A backend imports them from here, and loads no settings with them. */

/** Which of the two kernel interfaces the iptables commands speak to. */
export type IptablesVariant = 'nft' | 'legacy';
export const IPTABLES_VARIANTS: readonly IptablesVariant[] = ['nft', 'legacy'];

/** First and last packet mark that may be given. */
export interface MarkRange {
  readonly first: number;
  readonly last: number;
}

/** In mode ipvs: fwmark services (KEP-2610, open question 1c), or rules as in the iptables mode (1a). */
export type IpvsAllPortsMode = 'fwmark' | 'iptables';
